"""How each library is used: by its public names, as its documentation shows it.

A lock is made, acquired and released. Where the documentation has a way to keep the lock (extend, renew, a lease that
is refreshed), that is used. With ``asks`` the holder also asks, right before each write, whether the lock is still its
own, by whatever the library has for that.

A class imports its package itself: most are of the group ``bench``, and a process needs one.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import leasehold
from leasehold.core import clock

from ..resource import Counters


class Taken:
    """A lock that was acquired. What is not overridden, a library does not offer or need."""

    token = 0
    """Sent along with each write; 0: none."""

    def keep(self) -> None:
        """Called before each piece of work. Raises if the library says that the lock is gone."""

    def mine(self) -> bool:
        """Called right before each write, by holders that ask."""
        return True

    def release(self) -> bool:
        """False, or an error: the library says that the lock was gone."""
        raise NotImplementedError


class Library:
    """One process's client of a library."""

    def __init__(self, url: str, folder: Path, ttl: float, asks: bool) -> None:
        self.url, self.folder, self.ttl, self.asks = url, folder, ttl, asks

    def acquire(self, name: str, stop: threading.Event) -> Taken | None:
        """Wait as long as it takes. None: not acquired, because the run is at its end."""
        raise NotImplementedError

    def close(self) -> None:
        pass


class RedisPy(Library):
    """``client.lock(name, timeout=ttl)``. A body longer than the timeout calls ``reacquire()`` before each piece."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        import redis

        self.client = redis.Redis.from_url(self.url)

    def acquire(self, name: str, stop: threading.Event) -> Taken | None:
        lock = self.client.lock(name, timeout=self.ttl)
        return RedisPyTaken(lock) if lock.acquire() else None

    def close(self) -> None:
        self.client.close()


class RedisPyTaken(Taken):
    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def keep(self) -> None:
        self.lock.reacquire()

    def mine(self) -> bool:
        return bool(self.lock.owned())

    def release(self) -> bool:
        self.lock.release()  # raises LockNotOwnedError
        return True


class PythonRedisLock(Library):
    """``redis_lock.Lock(client, name, expire=1, auto_renewal=True)``: its thread renews every 2/3 of ``expire``."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        import redis

        self.client = redis.Redis.from_url(self.url)

    def acquire(self, name: str, stop: threading.Event) -> Taken | None:
        import redis_lock

        lock = redis_lock.Lock(self.client, name, expire=int(self.ttl), auto_renewal=True)
        return PythonRedisLockTaken(lock) if lock.acquire() else None

    def close(self) -> None:
        self.client.close()


class PythonRedisLockTaken(Taken):
    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def mine(self) -> bool:
        return bool(self.lock.get_owner_id() == self.lock.id)

    def release(self) -> bool:
        self.lock.release()  # raises NotAcquired
        return True


class Kazoo(Library):
    """``client.Lock(path)``, ephemeral, in a session of a ttl. With ``asks``: a state listener, as its documentation
    highly recommends. The lock is gone once the session was LOST, and not to be relied on while SUSPENDED."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        from kazoo.client import KazooClient, KazooState

        self.lost = 0
        self.connected = False
        self.state = KazooState
        self.client = KazooClient(self.url.partition("://")[2].partition("/")[0], timeout=self.ttl)
        self.client.add_listener(self.listen)
        self.client.start(timeout=60)

    def listen(self, state: str) -> None:
        self.connected = state == self.state.CONNECTED
        if state == self.state.LOST:
            self.lost += 1

    def acquire(self, name: str, stop: threading.Event) -> Taken | None:
        lost, lock = self.lost, self.client.Lock(f"/peers/{name}")
        return KazooTaken(self, lock, lost) if lock.acquire() else None

    def close(self) -> None:
        self.client.stop()
        self.client.close()


class KazooTaken(Taken):
    def __init__(self, of: Kazoo, lock: Any, lost: int) -> None:
        self.of, self.lock, self.lost = of, lock, lost

    def mine(self) -> bool:
        return self.of.connected and self.of.lost == self.lost

    def release(self) -> bool:
        return bool(self.lock.release())


class FileLock(Library):
    """``FileLock(path)``: flock(2), which the kernel gives back when the holder dies, and not before."""

    def acquire(self, name: str, stop: threading.Event) -> Taken | None:
        import filelock

        lock = filelock.FileLock(self.folder / f"{name}.lock")
        lock.acquire()
        return FileLockTaken(lock)


class FileLockTaken(Taken):
    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def release(self) -> bool:
        self.lock.release()
        return True


class FileLease(Library):
    """``SoftFileLease(path, lease_duration=ttl)``: its heartbeat refreshes it. With ``asks``: ``compromise``."""

    def acquire(self, name: str, stop: threading.Event) -> Taken | None:
        import filelock

        lease = filelock.SoftFileLease(self.folder / f"{name}.lease", lease_duration=self.ttl)
        lease.acquire()
        return FileLeaseTaken(lease)


class FileLeaseTaken(Taken):
    def __init__(self, lease: Any) -> None:
        self.lease = lease

    def mine(self) -> bool:
        return self.lease.compromise is None

    def release(self) -> bool:
        self.lease.release()
        return self.lease.compromise is None


class Leasehold(Library):
    """``locks.lock(name).acquire()``. With ``asks``: ``lease.valid``, which compares its deadline with the clock."""

    fenced = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.locks = leasehold.connect(self.url, ttl=self.ttl, namespace="peers")

    def acquire(self, name: str, stop: threading.Event) -> Taken | None:
        try:
            return LeaseTaken(self.locks.lock(name).acquire(cancel=stop), self.fenced)
        except leasehold.AcquireCancelled:
            return None

    def close(self) -> None:
        self.locks.close()


class FencedLeasehold(Leasehold):
    """The same, and each write carries the lease's token."""

    fenced = True


class LeaseTaken(Taken):
    def __init__(self, lease: leasehold.Lease, fenced: bool) -> None:
        self.lease = lease
        self.token = lease.token if fenced else 0

    def mine(self) -> bool:
        return self.lease.valid

    def release(self) -> bool:
        return self.lease.release()


class Naive(Library):
    """The negative control: a row that expires. Nobody renews it, or looks whose it is."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rows = Counters(self.folder / "resource.db", fenced=False)

    def acquire(self, name: str, stop: threading.Event) -> Taken | None:
        while not self.rows.naive_take(name, clock.now(), self.ttl):
            if stop.wait(0.005):
                return None
        return NaiveTaken(self.rows, name)


class NaiveTaken(Taken):
    def __init__(self, rows: Counters, name: str) -> None:
        self.rows, self.name = rows, name

    def release(self) -> bool:
        self.rows.naive_free(self.name)
        return True
