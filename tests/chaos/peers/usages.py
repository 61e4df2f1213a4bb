"""Which libraries are run, on which store, and used how."""

from __future__ import annotations

from typing import NamedTuple

from . import libraries


class Usage(NamedTuple):
    """One row of the table."""

    title: str
    package: str
    """Whose version is shown."""
    store: str
    """A store of :mod:`chaos.stores`; ``sqlite`` has no server: all that is left is files."""
    library: type[libraries.Library]
    asks: bool
    """Whether the holder asks, right before each write, if the lock is still its own."""
    how: str
    not_for: str
    """What it is not made for, by its own documentation."""


REDIS_PY = "It has no token and tells no loss; its documentation leaves it to the user that clients work together."
REDIS_LOCK = "It has no token. A renewal that fails ends its thread, and the holder is not told before `release()`."
KAZOO = "It has no token of its own; `release()` does not say whether the lock was still held."
FILE_LOCK = "One machine. It has no ttl: whoever is stopped keeps the lock."
FILE_LEASE = (
    "Exclusion: its documentation says that it trades mutual exclusion for progress, that an expired holder keeps "
    "running, and that the resource has to fence."
)
LEASEHOLD = "Without the token, a holder that is stopped between its check and its write."
FENCED = "A resource that cannot compare tokens."


def ours(store: str) -> dict[str, Usage]:
    """leasehold in three ways: nothing asked, the deadline asked, and tokens alone."""
    row = {"package": "leasehold", "store": store}
    return {
        f"leasehold-{store}": Usage(
            title="leasehold, not asked",
            library=libraries.Leasehold,
            asks=False,
            how="`acquire()` and `release()`; renewed by its keeper",
            not_for=LEASEHOLD,
            **row,  # type: ignore[arg-type]
        ),
        f"leasehold-{store}-asked": Usage(
            title="leasehold, `valid` before each write",
            library=libraries.Leasehold,
            asks=True,
            how="the same, and `lease.valid` before each write: no message, it compares the deadline with the clock",
            not_for=LEASEHOLD,
            **row,  # type: ignore[arg-type]
        ),
        f"leasehold-{store}-fenced": Usage(
            title="leasehold, fenced",
            library=libraries.FencedLeasehold,
            asks=False,
            how="not asked, and each write carries `lease.token`: the resource refuses older ones",
            not_for=FENCED,
            **row,  # type: ignore[arg-type]
        ),
    }


USAGES = {
    "redis-py": Usage(
        "redis-py `Lock`",
        "redis",
        "redis",
        libraries.RedisPy,
        False,
        "`client.lock(name, timeout=1)`; `reacquire()` before each piece of work",
        REDIS_PY,
    ),
    "redis-py-asked": Usage(
        "redis-py `Lock`, `owned()` before each write",
        "redis",
        "redis",
        libraries.RedisPy,
        True,
        "the same, and `owned()` before each write",
        REDIS_PY,
    ),
    "python-redis-lock": Usage(
        "python-redis-lock",
        "python-redis-lock",
        "redis",
        libraries.PythonRedisLock,
        False,
        "`Lock(client, name, expire=1, auto_renewal=True)`",
        REDIS_LOCK,
    ),
    "python-redis-lock-asked": Usage(
        "python-redis-lock, owner asked before each write",
        "python-redis-lock",
        "redis",
        libraries.PythonRedisLock,
        True,
        "the same, and `get_owner_id() == id` before each write",
        REDIS_LOCK,
    ),
    **ours("redis"),
    "kazoo": Usage(
        "kazoo `Lock`, not asked",
        "kazoo",
        "zookeeper",
        libraries.Kazoo,
        False,
        "`client.Lock(path)`, in a session with a timeout of 1 s",
        KAZOO,
    ),
    "kazoo-asked": Usage(
        "kazoo `Lock`, with a state listener",
        "kazoo",
        "zookeeper",
        libraries.Kazoo,
        True,
        "the same; before each write: CONNECTED, and never LOST since (its documentation highly recommends a listener)",
        KAZOO,
    ),
    **ours("zookeeper"),
    "filelock": Usage(
        "filelock `FileLock`",
        "filelock",
        "sqlite",
        libraries.FileLock,
        False,
        "`FileLock(path)`: flock(2), polled every 0.05 s",
        FILE_LOCK,
    ),
    "filelock-lease": Usage(
        "filelock `SoftFileLease`",
        "filelock",
        "sqlite",
        libraries.FileLease,
        True,
        "`SoftFileLease(path, lease_duration=1)`; `compromise` before each write",
        FILE_LEASE,
    ),
    **ours("sqlite"),
    "naive": Usage(
        "the negative control", "leasehold", "sqlite", libraries.Naive, False, "a row that expires", "anything"
    ),
}
CONTROL = "naive"
"""Not a peer: what is known to be wrong, to see that it is found so."""
PLACES = {"redis": "Redis", "zookeeper": "ZooKeeper", "sqlite": "files"}
"""What the page calls a store."""
