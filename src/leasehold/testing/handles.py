"""``Locks``, ``Lock`` and ``Lease`` as a test sees them: the same for threads and asyncio, nothing awaited."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..protocol import SECOND, Ask, Steps
from .api import PATIENCE, Api, Job
from .faults import Faults, install


def eventually(true: Callable[[], Any], within: float = PATIENCE, what: str = "") -> Any:
    """Look until it is so; an assertion error when it isn't in time."""
    ends = time.monotonic() + within
    while not (found := true()):
        if time.monotonic() >= ends:
            raise AssertionError(f"not so within {within:g} s: {what or true}")
        time.sleep(0.005)
    return found


class Lease:
    """One holding. Everything that is not here is the real one's: ``token``, ``valid``, ``remaining`` …"""

    def __init__(self, api: Api, real: Any) -> None:
        self.api = api
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def release(self) -> bool:
        return bool(self.api.call(self.real.release))

    def renew(self, ttl: float | None = None) -> None:
        self.api.call(self.real.renew, ttl)

    def wait_lost(self, timeout: float = PATIENCE) -> bool:
        return self.api.wait_lost(self.real, timeout)


class Lock:
    """A name to contend for."""

    def __init__(self, api: Api, real: Any) -> None:
        self.api = api
        self.real = real

    def acquire(self, timeout: float | None = None) -> Lease:
        return Lease(self.api, self.api.call(self.real.acquire, timeout))

    def try_acquire(self, timeout: float = 0) -> Lease | None:
        real = self.api.call(self.real.try_acquire, timeout)
        return None if real is None else Lease(self.api, real)

    def locked(self) -> bool:
        return bool(self.api.call(self.real.locked))

    def start(self, timeout: float | None = None) -> Waiter:
        """Begin to acquire, by itself."""
        return Waiter(self.api, self.api.acquire(self.real, timeout))

    def block(self, ended: Callable[[Any], bool]) -> Job:
        """Enter a block, by itself, and leave it when ``ended(lease)`` is true. ``job.lease`` is set inside."""
        return self.api.block(self.real, ended)


class Waiter:
    """An acquire that is under way."""

    def __init__(self, api: Api, job: Job) -> None:
        self.api = api
        self.job = job

    def done(self) -> bool:
        return self.job.done()

    def lease(self, timeout: float = PATIENCE) -> Lease:
        return Lease(self.api, self.job.result(timeout))

    def error(self, timeout: float = PATIENCE) -> BaseException | None:
        return self.job.error(timeout)

    def cancel(self) -> None:
        """Cancel as a user would: threads by the event, tasks by ``Task.cancel``."""
        self.job.cancel()


class Locks:
    """Leases of one namespace."""

    def __init__(self, api: Api, real: Any) -> None:
        self.api = api
        self.real = real

    @property
    def owner(self) -> str:
        return str(self.real.owner)

    def lock(self, name: str, **options: Any) -> Lock:
        return Lock(self.api, self.api.call(self.real.lock, name, **options))

    def inspect(self, name: str) -> Any:
        return self.api.call(self.real.inspect, name)

    def leases(self, prefix: str = "") -> list[Any]:
        return self.api.collect(self.real.leases, prefix)

    def break_lease(self, name: str, force: bool = False) -> bool:
        return bool(self.api.call(self.real.break_lease, name, force))

    def metrics(self) -> Any:
        return self.api.call(self.real.metrics)

    def on_event(self, callback: Callable[[Any], object]) -> None:
        self.real.on_event(callback)

    def close(self) -> None:
        self.api.call(self.real.close)

    def faults(self) -> Faults:
        """From now on, what lies between this ``Locks`` and its store can be made to fail."""
        return install(self.real)

    def stop_the_timer(self) -> None:
        """Let nobody mark what is past its deadline: what is told from now on is computed, or wrong."""
        core = self.real._core

        def nothing() -> None:
            core.next_deadline = float("inf")

        core.expire = nothing

    # Below the API: the operations of the store itself.

    @property
    def store(self) -> Any:
        return self.real._core.store

    def run(self, steps: Steps[Any], limit: float = 5.0) -> Any:
        """Run one operation of the store with its driver."""
        return self.api.call(self.real._core.driver.run, steps, limit)

    def ask(self, name: str, attempt: str, ttl: float, **fields: Any) -> Any:
        return self.run(self.store.acquire(make_ask(name, attempt, ttl, self.owner, **fields)))

    def renewals(self, *asks: Any) -> Sequence[str]:
        found: Sequence[str] = self.run(self.store.renew(asks))
        return found


def make_ask(name: str, attempt: str, ttl: float, owner: str = "somebody", **fields: Any) -> Ask:
    return Ask(name, attempt, owner, fields.pop("kind", "lock"), fields.pop("data", None), int(ttl * SECOND), **fields)
