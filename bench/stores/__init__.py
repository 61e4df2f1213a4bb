"""A file per store: which peers it is measured beside, and what it takes to have it. See ``sqlite.py``."""
