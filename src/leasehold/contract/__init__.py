"""What the public classes promise, in words: the docstrings that threads and asyncio share, each written once.

The public classes of ``threads/``, ``tasks/`` and ``kinds/`` derive from these. Where a method has no docstring,
``help()`` and IDEs show the inherited one. The signatures and the code are in the derived classes.
"""
