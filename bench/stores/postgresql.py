"""PostgreSQL, beside advisory locks and beside the bare statements; as durable as by default (fsync on)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psycopg

import leasehold

from .servers_path import DEAD

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


@contextlib.contextmanager
def peers(folder: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """Name of each peer: (its module in ``bench.peers``, its target). The first one is ours."""
    with Durable() as server:
        with leasehold.connect(f"{server.url}?table=crowded") as locks:
            locks.lock("first").acquire().release()
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(_FILL)
            connection.execute("VACUUM ANALYZE crowded")
        yield {
            "leasehold": ("leasehold_peer", server.url),
            "bare SQL": ("bare_postgresql", server.url),
            "100,000 dead rows": ("leasehold_peer", f"{server.url}?table=crowded"),
            "sqlalchemy-dlock": ("dlock_peer", server.url),
            "pals": ("pals_peer", server.url),
            "tooz": ("tooz_sql_peer", server.url),
        }
