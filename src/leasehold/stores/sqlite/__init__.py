"""SQLite: every process of one machine, over one file."""
