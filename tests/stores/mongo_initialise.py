"""Document A's own test, run by test_mongo_initialise: ``python mongo_initialise.py URL WAY ROUNDS``.

In each round three processes start together on an empty database; each takes the lock or skips; whoever has it
initialises.
Prints a line per round: how many initialised, how many records of the lock there are.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import sys
from typing import Any

PROCESSES = 3
NAME = "database-initialization"


def with_leasehold(url: str, barrier: Any) -> bool:
    import leasehold

    with leasehold.connect(url) as locks:
        barrier.wait()
        lease = locks.lock(NAME).try_acquire()
        barrier.wait()  # held until all have asked
        if lease is not None:
            lease.release()
        barrier.wait()
    return lease is not None


def with_the_faulty_filter(url: str, barrier: Any) -> bool:
    """The document's original code, which its review found faulty."""
    import pymongo

    client: Any = pymongo.MongoClient(url)
    me = f"{os.uname().nodename}_{os.urandom(4).hex()}"
    locks = client.get_default_database()["system_locks"]
    barrier.wait()
    now = datetime.datetime.now(datetime.UTC)
    found = locks.find_one_and_update(
        {"$or": [{"lockName": NAME, "_id": {"$exists": False}}, {"lockName": NAME, "expiresAt": {"$lt": now}}]},
        {
            "$set": {
                "instanceId": me,
                "acquiredAt": now,
                "expiresAt": now + datetime.timedelta(minutes=5),
                "status": "locked",
            },
            "$setOnInsert": {"lockName": NAME},
        },
        upsert=True,
        return_document=pymongo.ReturnDocument.AFTER,
    )
    barrier.wait()
    client.close()
    barrier.wait()
    return bool(found["instanceId"] == me)


WAYS = {"leasehold": (with_leasehold, "leasehold"), "faulty": (with_the_faulty_filter, "system_locks")}


def instance(way: str, url: str, barrier: Any, initialised: Any) -> None:
    if WAYS[way][0](url, barrier):
        with initialised.get_lock():
            initialised.value += 1


def count(url: str, collection: str, results: Any) -> None:
    """In a process of its own, because the one that forks has no connection. Leaves the database empty."""
    import pymongo

    with pymongo.MongoClient[Any](url) as client:
        database = client.get_default_database()
        results.value = database[collection].count_documents({})
        client.drop_database(database.name)


def main(url: str, way: str, rounds: int) -> None:
    import pymongo  # so that the children need not  # noqa: F401

    import leasehold.stores.mongodb.threads  # noqa: F401

    context = multiprocessing.get_context("fork")
    for _ in range(rounds):
        barrier, initialised, records = context.Barrier(PROCESSES), context.Value("i", 0), context.Value("i", 0)
        together = [context.Process(target=instance, args=(way, url, barrier, initialised)) for _ in range(PROCESSES)]
        for process in together:
            process.start()
        for process in together:
            process.join()
        counter = context.Process(target=count, args=(url, WAYS[way][1], records))
        counter.start()
        counter.join()
        print(initialised.value, records.value, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
