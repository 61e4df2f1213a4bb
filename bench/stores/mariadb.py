"""MariaDB, beside GET_LOCK and beside the bare statements; as durable as by default."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql

import leasehold

from .servers_path import CROWDED, DEAD

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
_FLUSHED = "SET GLOBAL innodb_flush_log_at_trx_commit = %s, GLOBAL sync_binlog = %s"


class Durable(MariaDB):
    quick = []  # noqa: RUF012


def _connect(target: str) -> contextlib.closing[Any]:
    where = urlsplit(target)
    place = {"host": where.hostname, "port": where.port, "user": where.username, "database": where.path[1:]}
    return contextlib.closing(pymysql.connect(**place))


def prepare(peers: dict[str, tuple[str, str]]) -> None:
    """Make the dead rows, if that peer is one of those who take part."""
    if CROWDED not in peers:
        return
    _, target = peers[CROWDED]
    with leasehold.connect(target) as locks:
        locks.lock("first").acquire().release()
    with _connect(target) as connection:
        cursor = connection.cursor()
        cursor.executemany(_FILL, [f"dead-{number}" for number in range(DEAD)])
        connection.commit()
        cursor.execute("ANALYZE TABLE crowded")


@contextlib.contextmanager
def filling(target: str) -> Iterator[None]:
    """See ``Setting``."""
    with _connect(target) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.sync_binlog")
        usual = cursor.fetchone()
        cursor.execute(_FLUSHED, (2, 0))
        yield
        cursor.execute(_FLUSHED, usual)


@contextlib.contextmanager
def peers(folder: Path, kind: type[Any] = Durable) -> Iterator[dict[str, tuple[str, str]]]:
    """Name of each peer: (its module in ``bench.peers``, its target). The first one is ours."""
    with kind() as server:
        yield {
            "leasehold": ("leasehold_peer", server.url),
            "bare SQL": ("bare_mysql", server.url),
            CROWDED: ("leasehold_peer", f"{server.url}?table=crowded"),
            "sqlalchemy-dlock": ("dlock_peer", server.url),
            "tooz": ("tooz_sql_peer", server.url),
        }
