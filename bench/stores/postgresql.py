"""PostgreSQL, beside advisory locks and beside the bare statements; as durable as by default (fsync on)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psycopg

import leasehold

from .servers_path import CROWDED, DEAD

from servers.postgresql import PostgreSQL as Server  # isort: skip

TITLE = "PostgreSQL"
ABOUT = (
    "PostgreSQL on this machine, fsync on; the same two statements sent by bare psycopg; the same table with 100,000 "
    "dead rows; sqlalchemy-dlock, pals and tooz, which use advisory locks (nothing is written, and nothing expires)."
)
PAIRS = 60
_FILL = f"""INSERT INTO crowded (namespace, name, format, version, token, attempt, session, owner, kind, state,
    acquired, expires, expires_day, created, updated)
SELECT 'dead', 'dead-' || n, 1, 1, 1, '', '', '', '', 0, 0, 0, extract(epoch FROM now())::bigint / 86400, 0, 0
FROM generate_series(1, {DEAD}) AS n"""


class Durable(Server):
    def command(self) -> list[str]:
        return [part.replace("--fsync=off", "--fsync=on") for part in super().command()]


def prepare(peers: dict[str, tuple[str, str]]) -> None:
    """Make the dead rows, if that peer is one of those who take part."""
    if CROWDED not in peers:
        return
    _, target = peers[CROWDED]
    with leasehold.connect(target) as locks:
        locks.lock("first").acquire().release()
    with psycopg.connect(target.partition("?")[0], autocommit=True) as connection:
        connection.execute(_FILL)
        connection.execute("VACUUM ANALYZE crowded")


@contextlib.contextmanager
def filling(target: str) -> Iterator[None]:
    """See ``Setting``. What was written then is on the disk in the end, so that nobody who is measured pays for it."""
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_commit = off")
        connection.execute("SELECT pg_reload_conf()")
        yield
        connection.execute("ALTER SYSTEM RESET synchronous_commit")
        connection.execute("SELECT pg_reload_conf()")
        connection.execute("CHECKPOINT")


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """Name of each peer: (its module in ``bench.peers``, its target). The first one is ours."""
    with Durable() as server:
        yield {
            "leasehold": ("leasehold_peer", server.url),
            "bare SQL": ("bare_postgresql", server.url),
            CROWDED: ("leasehold_peer", f"{server.url}?table=crowded"),
            "sqlalchemy-dlock": ("dlock_peer", server.url),
            "pals": ("pals_peer", server.url),
            "tooz": ("tooz_sql_peer", server.url),
        }
