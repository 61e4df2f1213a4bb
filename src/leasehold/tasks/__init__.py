"""The shell for asyncio, twin of :mod:`leasehold.threads`: ``runner`` carries out what the core asks for; the rest
is what users see, as :mod:`leasehold.aio`."""
