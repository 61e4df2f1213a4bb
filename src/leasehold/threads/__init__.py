"""The shell for threads. ``runner`` carries out what the core asks for; the rest is what users see."""
