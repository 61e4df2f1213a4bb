"""The command, as real processes on a real SQLite file."""
