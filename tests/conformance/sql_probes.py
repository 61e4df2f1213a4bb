"""How the suite looks into SQL stores: with the drivers alone, reading the columns as docs/stores say."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import psycopg
import pymysql

from leasehold.testing import Held

_open: dict[str, Any] = {}
"""A connection per server for the whole run: what is open before a test is not counted as its leak."""
_mutex = threading.Lock()


def held(row: Sequence[Any]) -> tuple[list[Held], int]:
    now, owner, token, state, expires, more = row
    holders = [Held(owner, token, (expires - now) / 1e6)] if state else []
    if more is None:
        return holders, 0
    *_, others, queue = json.loads(more)
    holders += [Held(each[1], each[9], (each[8] - now) / 1e6) for each in others]
    return holders, sum(each[8] > now for each in queue)


class SqlProbe:
    now: str

    def __init__(self, table: str = "leasehold") -> None:
        self.table = table

    def query(self, sql: str, *values: Any) -> list[Any]:
        raise NotImplementedError

    def value(self, text: str) -> Any:
        return text

    def names(self, namespace: str) -> Sequence[str]:
        found = self.query(f"SELECT name FROM {self.table} WHERE namespace = %s", self.value(namespace))
        return [name if isinstance(name, str) else name.decode() for (name,) in found]

    def holders(self, namespace: str, name: str) -> Sequence[Held]:
        return self._held(namespace, name)[0]

    def waiters(self, namespace: str, name: str) -> int:
        return self._held(namespace, name)[1]

    def _held(self, namespace: str, name: str) -> tuple[list[Held], int]:
        columns = f"{self.now}, owner, token, state, expires, more"
        sql = f"SELECT {columns} FROM {self.table} WHERE namespace = %s AND name = %s"
        found = self.query(sql, self.value(namespace), self.value(name))
        return held(found[0]) if found else ([], 0)

    def wipe(self) -> None:
        self.query(f"DELETE FROM {self.table}")

    def age(self, namespace: str, name: str) -> None:
        """Let the record look dead for a month."""
        sql = f"UPDATE {self.table} SET expires = 0, expires_day = 0 WHERE namespace = %s AND name = %s"
        self.query(sql, self.value(namespace), self.value(name))


class PostgreSQLProbe(SqlProbe):
    now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

    def __init__(self, url: str, table: str = "leasehold") -> None:
        super().__init__(table)
        self.url = url

    def query(self, sql: str, *values: Any) -> list[Any]:
        with _mutex:
            connection = _open.get(self.url)
            if connection is None or connection.closed:
                connection = _open[self.url] = psycopg.connect(self.url, autocommit=True)
            try:
                cursor = connection.execute(sql, values or None)
            except psycopg.errors.UndefinedTable:
                return []
            return cursor.fetchall() if cursor.description else []


class MySQLProbe(SqlProbe):
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

    def __init__(self, port: int, table: str = "leasehold", user: str = "root", database: str = "leasehold") -> None:
        super().__init__(table)
        self.place = {"host": "127.0.0.1", "port": port, "user": user, "database": database}

    def value(self, text: str) -> Any:
        return text.encode()

    def query(self, sql: str, *values: Any) -> list[Any]:
        key = str(self.place)
        with _mutex:
            if key not in _open:
                _open[key] = pymysql.connect(**self.place, autocommit=True)
            try:
                with _open[key].cursor() as cursor:
                    cursor.execute(sql, values)
                    return list(cursor.fetchall())
            except pymysql.err.ProgrammingError as error:
                if error.args[0] == 1146:
                    return []
                raise
