"""What the peers' processes write to: counters that are read, raised and written back, and a log of all of it.

The log is in the order in which the resource saw each step. A token of 0, which all peers have, is never refused. Each
name has a file of its own, so that a process that is stopped in a transaction delays nobody with another name.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

from leasehold.core import clock

SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE counter (value INTEGER NOT NULL, token INTEGER NOT NULL);
INSERT INTO counter VALUES (0, 0);
CREATE TABLE step (seq INTEGER PRIMARY KEY, holding INTEGER NOT NULL, what TEXT NOT NULL, at REAL NOT NULL);
"""
SUFFIX = ".ledger"


class Step(NamedTuple):
    """A line of the log: this holding ``began`` or ``wrote``."""

    holding: int
    what: str
    at: float


class Ledger:
    """One counter. Each call is one short transaction."""

    def __init__(self, folder: Path, name: str) -> None:
        self.database = sqlite3.connect(folder / f"{name}{SUFFIX}", timeout=60, isolation_level=None)
        self.database.execute("PRAGMA synchronous = OFF")

    def create(self) -> None:
        self.database.executescript(SCHEMA)

    def begin(self, holding: int, token: int) -> bool:
        """A holder is about to work. False: its token is older than one seen before."""
        return self._step("began", holding, "UPDATE counter SET token = ? WHERE token <= ?", (token, token))

    def read(self) -> int:
        value: int = self.database.execute("SELECT value FROM counter").fetchone()[0]
        return value

    def write(self, holding: int, token: int, value: int) -> bool:
        change = "UPDATE counter SET value = ?, token = ? WHERE token <= ?"
        return self._step("wrote", holding, change, (value, token, token))

    def _step(self, what: str, holding: int, change: str, values: tuple[int, ...]) -> bool:
        self.database.execute("BEGIN IMMEDIATE")
        try:
            done = self.database.execute(change, values).rowcount == 1
            if done:
                log = "INSERT INTO step (holding, what, at) VALUES (?, ?, ?)"
                self.database.execute(log, (holding, what, clock.now()))
            self.database.execute("COMMIT")
            return done
        except BaseException:
            self.database.execute("ROLLBACK")
            raise

    def log(self) -> list[Step]:
        steps = "SELECT holding, what, at FROM step ORDER BY seq"
        return [Step(*each) for each in self.database.execute(steps).fetchall()]

    def close(self) -> None:
        self.database.close()


def results(folder: Path) -> dict[str, tuple[int, list[Step]]]:
    """Value and log of each name."""
    found = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        ledger = Ledger(folder, path.stem)
        found[path.stem] = (ledger.read(), ledger.log())
        ledger.close()
    return found
