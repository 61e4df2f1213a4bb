"""How the suite looks into our own embedded stores. These read the stored record by themselves, not by ``Entry``."""

import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from leasehold.stores import memory
from leasehold.testing import Held


def decode(state: str) -> tuple[list[Held], int]:
    """Holders and the number of waiters of a record: [shape, limit, holders, queue], permits as lists."""
    if not state:
        return [], 0
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    _, _, holders, queue = json.loads(state)
    owner, expires, token = 1, 8, 9
    held = [Held(each[owner], each[token], (each[expires] - now) / 1e6) for each in holders]
    return held, sum(each[expires] > now for each in queue)


class MemoryProbe:
    def __init__(self, table: str) -> None:
        self.table = memory._tables.setdefault(table, memory.Table())

    def names(self, namespace: str) -> Sequence[str]:
        return [name for space, name in list(self.table.rows) if space == namespace]

    def holders(self, namespace: str, name: str) -> Sequence[Held]:
        return decode(self._state(namespace, name))[0]

    def waiters(self, namespace: str, name: str) -> int:
        return decode(self._state(namespace, name))[1]

    def _state(self, namespace: str, name: str) -> str:
        return self.table.rows.get((namespace, name), (0, 0, ""))[2]


class SqliteProbe:
    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self, namespace: str) -> Sequence[str]:
        return [name for (name,) in self._query("SELECT name FROM leasehold WHERE namespace = ?", namespace)]

    def holders(self, namespace: str, name: str) -> Sequence[Held]:
        return decode(self._state(namespace, name))[0]

    def waiters(self, namespace: str, name: str) -> int:
        return decode(self._state(namespace, name))[1]

    def age(self, namespace: str, name: str) -> None:
        """Let the record look untouched for a month, and the last purge too."""
        self._query("UPDATE leasehold SET updated = 0 WHERE namespace = ? AND name = ?", namespace, name)
        self._query("DELETE FROM leasehold_meta WHERE key = 'tidied'")

    def _state(self, namespace: str, name: str) -> str:
        found = self._query("SELECT state FROM leasehold WHERE namespace = ? AND name = ?", namespace, name)
        return found[0][0] if found else ""

    def _query(self, query: str, *values: str) -> list[tuple[str]]:
        if not self.path.exists():
            return []
        connection = sqlite3.connect(self.path, timeout=10, isolation_level=None)
        try:
            return connection.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
        finally:
            connection.close()
