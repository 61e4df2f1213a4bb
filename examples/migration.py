"""A migration that one of several replicas runs at start-up; the others wait for it, see that it is done, and go on.

Here three processes stand for three replicas.
"""

import multiprocessing
import os
import sqlite3
import tempfile
import time
from contextlib import closing

import leasehold


def start_replica(number: int, path: str) -> None:
    locks = leasehold.connect()
    with locks.lock("migration", timeout=60) as lease:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version >= 1:
                print(f"replica {number}: schema is up to date", flush=True)
                return
            print(f"replica {number}: migrating", flush=True)
            time.sleep(0.3)  # a long step; leasehold renews meanwhile
            lease.check()  # still ours? Else stop before changing anything
            database.execute("CREATE TABLE invoice (id INTEGER PRIMARY KEY, total INTEGER)")
            database.execute("PRAGMA user_version = 1")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "app.db")
        context = multiprocessing.get_context("spawn")
        replicas = [context.Process(target=start_replica, args=(number, path)) for number in (1, 2, 3)]
        for replica in replicas:
            replica.start()
        for replica in replicas:
            replica.join()
        assert [replica.exitcode for replica in replicas] == [0, 0, 0]
