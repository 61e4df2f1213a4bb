"""``Locks``, ``Lock`` and ``Lease`` for tests: the same for threads and asyncio, nothing awaited."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..core import clock
from ..core.protocol import SECOND, Ask, Steps
from ..core.timing import FIRST_TERM
from ..errors import AcquireTimeout, ShuttingDown, StoreUnavailable
from .api import PATIENCE, Api, Job
from .faults import Faults, install
from .inside import core, deadline

RENEWED = 0.01
"""How much later its deadline is when a lease was renewed: no renewal follows another sooner."""


def eventually(true: Callable[[], Any], within: float = PATIENCE, what: str = "") -> Any:
    """Wait until the condition is true; AssertionError if it is not true in time."""
    ends = time.monotonic() + within
    while True:
        last = time.monotonic() >= ends  # before it looks: a look that takes long is not the last one
        if found := true():
            return found
        if last:
            raise AssertionError(f"not so within {within:g} s: {what or true}")
        time.sleep(0.005)


def in_time(act: Callable[[], float], bound: float, tries: int = 5) -> None:
    """Assert that ``act``, which returns how long it took, took at most ``bound`` seconds: the best of a few tries,
    since a machine may stall."""
    took = [act()]
    while min(took) > bound:
        assert len(took) < tries, f"longer than {bound:g} s each time: {took}"
        took.append(act())


def times_out(wait: Callable[[], Any], tries: int = 5) -> AcquireTimeout:
    """Assert that ``wait`` raises AcquireTimeout, and return it. On a machine that stalls for as long as the last call
    may take, ``wait`` may raise StoreUnavailable; then try again."""
    for _ in range(tries):
        try:
            wait()
        except AcquireTimeout as error:
            return error
        except StoreUnavailable:
            continue
        raise AssertionError("it did not time out")
    raise AssertionError(f"the store has not answered in time, {tries} times")


class Lease:
    """One holding. What is not defined here is passed on to the real lease: ``token``, ``valid``, ``remaining`` …"""

    def __init__(self, api: Api, real: Any) -> None:
        self.api = api
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def release(self) -> bool:
        return bool(self.api.call(self.real.release))

    def let_go(self) -> bool:
        """As ``release``, for a lease so short that a store on a busy machine may answer after its end. Then the keeper
        retries the release, and the result is False."""
        try:
            return self.release()
        except StoreUnavailable:
            return False

    def renew(self, ttl: float | None = None) -> None:
        self.api.call(self.real.renew, ttl)

    def transfer(self) -> str:
        return str(self.api.call(self.real.transfer))

    def transfer_in_block(self) -> str:
        """As ``transfer``, as the last thing in its block."""
        if self.api.side == "threads":
            with self.real:
                return str(self.real.transfer())

        async def block() -> str:
            async with self.real:
                return str(await self.real.transfer())

        return str(self.api.call(block))

    def downgrade(self) -> Lease:
        return Lease(self.api, self.api.call(self.real.downgrade))

    def wait_lost(self, timeout: float = PATIENCE) -> bool:
        return self.api.wait_lost(self.real, timeout)

    def has_whole_term(self) -> bool:
        """Wait until the lease has more than the first term that a release may have granted. False if the first term
        expired before, because the machine stalled."""
        eventually(lambda: self.real.remaining > FIRST_TERM or self.ran_out(), what="it is had for its whole ttl")
        return not self.ran_out()

    def ran_out(self) -> bool:
        """Whether the last term is over by the clock: a process that stalled for so long has rightly lost the lease.

        One that another's release has granted begins with a first term, which is short, whatever its ttl."""
        return clock.now() >= deadline(self.real)

    def until(self) -> float:
        """Until when it can be trusted, on the local clock."""
        return float(self.real.remaining + clock.now())  # in this order: never too early

    def is_renewed(self, within: float = PATIENCE) -> None:
        """Wait until it was renewed once more: all of it, if it is of several names."""
        before = self.until()
        eventually(lambda: clock.now() + self.real.remaining > before + RENEWED, within, "it is renewed")


class Lock:
    """A lock."""

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
        """Begin to acquire, in the background."""
        return Waiter(self.api, self.api.acquire(self.real, timeout))

    def block(self, ended: Callable[[Any], bool]) -> Job:
        """Enter a block in the background, and leave it when ``ended(lease)`` is true. ``job.lease`` is set inside."""
        return self.api.block(self.real, ended)


class Waiter:
    """An acquire in the background."""

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


class Election:
    """A candidate. ``terms`` are its terms so far."""

    def __init__(self, api: Api, real: Any) -> None:
        self.api = api
        self.real = real
        self.terms: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    @property
    def is_leader(self) -> bool:
        """Whether it leads, and its callback has been called."""
        return bool(self.terms and self.terms[-1].valid and self.real.is_leader)

    def start(self, elected: Callable[[Any], Any] = lambda term: None) -> Job:
        """Be a candidate in the background, and lead until notified to stop, or ``elected(term)`` returns a value."""

        def begin(term: Any) -> Any:
            self.terms.append(term)
            return elected(term)

        return self.api.lead(self.real, begin)

    def leader(self) -> Any:
        return self.api.call(self.real.leader)

    def observe(self, into: list[Any]) -> Job:
        return self.api.gather(self.real.observe, into)

    def resign(self) -> None:
        self.api.call(self.real.resign)

    def stop(self) -> None:
        self.api.call(self.real.stop)


class Once:
    """Work that is done once."""

    def __init__(self, api: Api, real: Any) -> None:
        self.api = api
        self.real = real

    def run(self, function: Callable[[], Any], timeout: float | None = None, check: bool | None = None) -> Any:
        return self.api.call(self.real.run, function, timeout, check=check)

    def start(self, function: Callable[[], Any]) -> Job:
        """Run in the background; if ``function`` returns a future of this handle, the loop is not blocked."""
        return self.api.start(self.real.run, function)

    def outcome(self) -> Any:
        return self.api.call(self.real.outcome)

    def history(self) -> list[Any]:
        found: list[Any] = self.api.call(self.real.history)
        return found

    def forget(self, version: str | int | None = None, every_version: bool = False) -> bool:
        return bool(self.api.call(self.real.forget, version, every_version=every_version))


class Group:
    """Members of one name. ``seen`` has the calls of the callbacks."""

    def __init__(self, api: Api, real: Any) -> None:
        self.api = api
        self.real = real
        self.seen: list[tuple[str, str]] = []
        self.take_back: dict[str, Callable[[], None]] = {}
        """By happening, what ends its callback."""

    def join(self, data: Any = None, **options: Any) -> Lease:
        return Lease(self.api, self.api.call(self.real.join, data, **options))

    def update(self, data: Any) -> None:
        self.api.call(self.real.update, data)

    def leave(self) -> None:
        self.api.call(self.real.leave)

    def members(self) -> Any:
        return self.api.call(self.real.members)

    def owner_of(self, key: str) -> Any:
        return self.api.call(self.real.owner_of, key)

    def leases_of(self, member: Any) -> list[Any]:
        found: list[Any] = self.api.call(self.real.leases_of, member)
        return found

    def watch(self) -> None:
        for what in ("joined", "left", "failed", "updated"):
            self.take_back[what] = self.api.call(getattr(self.real, f"on_{what}"), functools.partial(self._note, what))

    def _note(self, what: str, member: Any) -> None:
        self.seen.append((what, member.owner))


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

    def once(self, name: str, **options: Any) -> Once:
        return Once(self.api, self.api.call(self.real.once, name, **options))

    def election(self, name: str, **options: Any) -> Election:
        return Election(self.api, self.api.call(self.real.election, name, **options))

    def group(self, name: str, **options: Any) -> Group:
        return Group(self.api, self.api.call(self.real.group, name, **options))

    def semaphore(self, name: str, limit: int, **options: Any) -> Lock:
        return Lock(self.api, self.api.call(self.real.semaphore, name, limit=limit, **options))

    def reader(self, name: str, **options: Any) -> Lock:
        return Lock(self.api, self.api.call(lambda: self.real.rwlock(name).read(**options)))

    def writer(self, name: str, **options: Any) -> Lock:
        return Lock(self.api, self.api.call(lambda: self.real.rwlock(name).write(**options)))

    def all_of(self, *names: str, **options: Any) -> Lock:
        return Lock(self.api, self.api.call(self.real.all_of, *names, **options))

    def accept(self, text: str, **options: Any) -> Lease:
        return Lease(self.api, self.api.call(self.real.accept, text, **options))

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

    def drain(self, grace: float) -> list[str]:
        found: list[str] = self.api.call(self.real.drain, grace)
        return found

    def start_drain(self, grace: float) -> Job:
        """Begin to drain, in the background."""
        return self.api.start(self.real.drain, grace)

    def refuses(self, name: str) -> bool:
        """Whether it gives out no new leases."""
        try:
            lease = self.lock(name).try_acquire()
        except ShuttingDown:
            return True
        if lease is not None:
            lease.release()
        return False

    def is_closed(self) -> bool:
        """Whether it asks the store nothing any more."""
        try:
            self.inspect("-")
        except ShuttingDown:
            return True
        return False

    def close(self) -> None:
        self.api.call(self.real.close)

    def faults(self) -> Faults:
        """From now on, faults can be injected between this ``Locks`` and its store."""
        return install(self.real)

    def stop_the_timer(self) -> None:
        """Stop the timer from marking expired leases: every later answer must be computed from the clock."""
        books = core(self.real)

        def nothing() -> None:
            books.next_deadline = float("inf")

        books.expire = nothing  # type: ignore[method-assign]

    # Below the API: the operations of the store itself.

    @property
    def store(self) -> Any:
        return core(self.real).store

    @property
    def driver(self) -> Any:
        return core(self.real).driver

    def attempt(self, name: str) -> str:
        """The attempt that holds the name, by the store's record."""
        [holder] = self.run(self.store.inspect(name))
        return str(holder.attempt)

    def run(self, steps: Steps[Any], limit: float = PATIENCE) -> Any:
        """Run one operation of the store with its driver."""
        return self.api.call(self.driver.run, steps, limit)

    def ask(self, name: str, attempt: str, ttl: float, **fields: Any) -> Any:
        return self.run(self.store.acquire(make_ask(name, attempt, ttl, self.owner, **fields)))

    def renewals(self, *asks: Any) -> Sequence[str]:
        found: Sequence[str] = self.run(self.store.renew(asks))
        return found


def make_ask(name: str, attempt: str, ttl: float, owner: str = "somebody", **fields: Any) -> Ask:
    return Ask(name, attempt, owner, fields.pop("kind", "lock"), fields.pop("data", None), int(ttl * SECOND), **fields)
