"""Behaviours C1 to C3, run by test_sql: ``python sql_initialise.py URL HOW STARTS``.

At each start three processes begin together, on a database that has no table of leases yet; each takes the lock and
initialises what is not initialised yet. With HOW ``lock`` or, for comparison, ``nothing`` in place of a lock. Prints a
line per start: how many have initialised, and how many have come to their end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import time
from typing import Any

REPLICAS = 3


def replica(url: str, how: str, begin: Any, ready: Any, runs: Any, ends: Any) -> None:
    import leasehold

    with leasehold.connect(url, ttl=10) as locks:
        begin.wait()
        with locks.lock("initialise") if how == "lock" else contextlib.nullcontext():
            if not ready.value:
                time.sleep(0.02)
                ready.value = 1
                with runs.get_lock():
                    runs.value += 1
    with ends.get_lock():
        ends.value += 1


def drop(url: str) -> None:
    """In a process of its own, because the one that forks has no connection."""
    if url.startswith("postgresql"):
        import psycopg

        connection: Any = psycopg.connect(url)
    else:
        import pymysql

        from leasehold.stores.sql.url import read_url

        place = read_url(url)
        connection = pymysql.connect(host=place.host, port=place.port, user=place.user, database=place.database)
    connection.cursor().execute("DROP TABLE IF EXISTS starts")
    connection.commit()
    connection.close()


def main(url: str, how: str, starts: int) -> None:
    import leasehold.stores.mysql.threads
    import leasehold.stores.postgresql.threads  # noqa: F401  (so that the children need not)

    context = multiprocessing.get_context("fork")
    for _ in range(starts):
        begin = context.Barrier(REPLICAS)
        ready, runs, ends = (context.Value("i", 0) for _ in range(3))
        dropping = context.Process(target=drop, args=(url,))
        dropping.start()
        dropping.join()
        replicas = [
            context.Process(target=replica, args=(f"{url}?table=starts", how, begin, ready, runs, ends))
            for _ in range(REPLICAS)
        ]
        for process in replicas:
            process.start()
        for process in replicas:
            process.join()
        print(runs.value, ends.value, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
