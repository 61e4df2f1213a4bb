"""What the processes write to: counters in a SQLite file that refuse a token older than one they have seen."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from leasehold.testing.history import Resource

SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL, token INTEGER NOT NULL);
CREATE TABLE log (seq INTEGER PRIMARY KEY, name TEXT NOT NULL, token INTEGER NOT NULL, owner TEXT NOT NULL);
CREATE TABLE naive (name TEXT PRIMARY KEY, expires REAL NOT NULL);
"""


class Counters:
    """One connection. Its transactions are short, but whoever is stopped in one holds up the others."""

    def __init__(self, path: Path, fenced: bool = True) -> None:
        self.fenced = fenced
        self.database = sqlite3.connect(path, timeout=60, isolation_level=None)
        self.database.execute("PRAGMA synchronous = OFF")

    def create(self, names: list[str]) -> None:
        self.database.executescript(SCHEMA)
        self.database.executemany("INSERT INTO counter VALUES (?, 0, 0)", [(name,) for name in names])

    def read(self, name: str, token: int) -> int | None:
        """The value, for one who means to write with this token: older ones are refused from now on."""
        newer = "WHERE name = ? AND token <= ?" if self.fenced else "WHERE name = ? AND ? > 0"
        change = f"UPDATE counter SET token = ? {newer} RETURNING value"
        found = self.database.execute(change, (token, name, token)).fetchall()
        return found[0][0] if found else None

    def write(self, name: str, value: int, token: int, owner: str) -> bool:
        newer = "WHERE name = ? AND token <= ?" if self.fenced else "WHERE name = ? AND ? > 0"
        self.database.execute("BEGIN IMMEDIATE")
        try:
            change = f"UPDATE counter SET value = ?, token = ? {newer}"
            done = self.database.execute(change, (value, token, name, token)).rowcount == 1
            if done:
                self.database.execute("INSERT INTO log (name, token, owner) VALUES (?, ?, ?)", (name, token, owner))
            self.database.execute("COMMIT")
            return done
        except BaseException:
            self.database.execute("ROLLBACK")
            raise

    def results(self) -> dict[str, Resource]:
        found = {}
        for name, value in self.database.execute("SELECT name, value FROM counter").fetchall():
            log = self.database.execute("SELECT token, owner FROM log WHERE name = ? ORDER BY seq", (name,)).fetchall()
            found[name] = Resource(value, log)
        return found

    # The lock of the negative control: a row that expires. No token, nobody looks whose it is.

    def naive_take(self, name: str, now: float, ttl: float) -> bool:
        take = "INSERT INTO naive VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET expires = ? WHERE expires <= ?"
        return self.database.execute(take, (name, now + ttl, now + ttl, now)).rowcount == 1

    def naive_free(self, name: str) -> None:
        self.database.execute("DELETE FROM naive WHERE name = ?", (name,))
