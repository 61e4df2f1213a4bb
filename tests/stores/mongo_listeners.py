"""Who listens for calls on a MongoDB server, as the server itself shows it, and waiters that are called."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import leasehold
from leasehold.core.protocol import ThreadDriver
from leasehold.stores import mongodb
from leasehold.stores.mongodb import store as mongo

THREAD = "leasehold-mongodb"
SETTLE = 0.5
"""A waiter that asked before its cursor was opened polls more often than this, and so has asked again after it."""


def eventually(true: Callable[[], Any], within: float = 60.0) -> Any:
    ends = time.monotonic() + within
    while not (found := true()):
        assert time.monotonic() < ends, "not so in time"
        time.sleep(0.01)
    return found


class Listening(NamedTuple):
    """A request for calls that waits on the server."""

    way: str
    cursor: int
    session: str


def listening(database: Any) -> list[Listening]:
    """The requests for calls of leases in this database, by the age of their cursors."""
    leases = f"{database.name}.leasehold"
    waits = {"ns": {"$in": [leases, f"{leases}.calls"]}, "command.getMore": {"$exists": True}, "active": True}
    found = database.client.admin.aggregate([{"$currentOp": {"allUsers": True}}, {"$match": waits}]).to_list()
    return [_read(each) for each in sorted(found, key=lambda each: each["cursor"]["createdDate"])]


def _read(operation: Any) -> Listening:
    command = operation["cursor"]["originatingCommand"]
    if operation["ns"].endswith(".calls"):
        return Listening("calls", operation["command"]["getMore"], command["filter"]["to"])
    [of_update, _] = command["pipeline"][1]["$match"]["$or"]
    [(_, condition)] = of_update.items()
    return Listening("stream", operation["command"]["getMore"], condition["$regex"])


def queue(database: Any, name: str = "x") -> list[Any]:
    found = database["leasehold"].find_one({"_id.name": name})
    return list(found["queue"]) if found else []


def hearing(database: Any, name: str = "x", other_than: int = 0) -> Listening:
    """The listener of the last waiter of a name, once that has asked since the cursor was opened."""

    def found() -> Listening | None:
        sessions = [each["session"].removeprefix("s") for each in queue(database, name)[-1:]]
        mine = [each for each in listening(database) if each.session in sessions and each.cursor != other_than]
        return mine[0] if mine else None

    listener: Listening = eventually(found)
    time.sleep(SETTLE)
    return listener


def threads() -> list[threading.Thread]:
    """The listeners of this process."""
    return [each for each in threading.enumerate() if each.name == THREAD]


class Waiter(threading.Thread):
    """Waits for a name, releases it at once, and notes when it had it."""

    def __init__(self, locks: leasehold.Locks, database: Any, name: str = "x", push: bool = True) -> None:
        super().__init__(daemon=True)
        self.lock = locks.lock(name)
        self.had: float | None = None
        self.token = 0
        self.start()
        eventually(lambda: queue(database, name))
        if push:
            self.listener = hearing(database, name)
        else:
            time.sleep(SETTLE)
            assert not [one for one in listening(database) if queue(database, name)[-1]["session"] == one.session]

    def run(self) -> None:
        with self.lock.acquire(timeout=110) as lease:
            self.had = time.monotonic()
            self.token = lease.token

    def served_after(self, lease: leasehold.Lease) -> float:
        """Seconds from the release to the waiter's return from acquire."""
        began = time.monotonic()
        lease.release()
        self.join(60)
        assert self.had is not None
        assert self.token > lease.token
        return self.had - began


def hand_off(
    ours: leasehold.Locks, theirs: leasehold.Locks, database: Any, name: str = "x", push: bool = True
) -> float:
    lease = ours.lock(name).acquire()
    return Waiter(theirs, database, name, push).served_after(lease)


@contextmanager
def opened(target: Any, namespace: str = "") -> Iterator[tuple[mongo.MongoStore, ThreadDriver]]:
    """A store and its driver for threads, as the core uses them."""
    found = mongodb.open_url(target, namespace) if isinstance(target, str) else mongodb.open_client(target, namespace)
    assert isinstance(found.store, mongo.MongoStore)
    driver = found.threads()
    try:
        yield found.store, driver
    finally:
        driver.close()
