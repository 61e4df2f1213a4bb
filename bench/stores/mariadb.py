"""MariaDB, beside GET_LOCK and beside the bare statements; as durable as by default."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql

import leasehold

from .servers_path import DEAD

from servers.mysql import MariaDB  # isort: skip

TITLE = "MariaDB"
ABOUT = (
    "MariaDB on this machine, flushed at each commit; the same two statements sent by bare PyMySQL and aiomysql; "
    "the same table with 100,000 dead rows; sqlalchemy-dlock and tooz, which use GET_LOCK (nothing written, no expiry)."
)
PAIRS = 20
_FILL = """INSERT INTO crowded (namespace, name, format, version, token, attempt, session, owner, kind, state,
    acquired, expires, expires_day, created, updated)
VALUES ('dead', %s, 1, 1, 1, '', '', '', '', 0, 0, 0, UNIX_TIMESTAMP() DIV 86400, 0, 0)"""


class Durable(MariaDB):
    quick = []  # noqa: RUF012


@contextlib.contextmanager
def peers(folder: Path, kind: type[Any] = Durable) -> Iterator[dict[str, tuple[str, str]]]:
    """Name of each peer: (its module in ``bench.peers``, its target). The first one is ours."""
    with kind() as server:
        with leasehold.connect(f"{server.url}?table=crowded") as locks:
            locks.lock("first").acquire().release()
        where = {"host": "127.0.0.1", "port": server.port, "user": "root", "database": "leasehold"}
        with contextlib.closing(pymysql.connect(**where, autocommit=False)) as connection:
            cursor = connection.cursor()
            cursor.executemany(_FILL, [f"dead-{number}" for number in range(DEAD)])
            connection.commit()
            cursor.execute("ANALYZE TABLE crowded")
        yield {
            "leasehold": ("leasehold_peer", server.url),
            "bare SQL": ("bare_mysql", server.url),
            "100,000 dead rows": ("leasehold_peer", f"{server.url}?table=crowded"),
            "sqlalchemy-dlock": ("dlock_peer", server.url),
            "tooz": ("tooz_sql_peer", server.url),
        }
