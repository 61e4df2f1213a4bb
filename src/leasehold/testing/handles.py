"""``Locks``, ``Lock`` and ``Lease`` as a test sees them: the same for threads and asyncio, nothing awaited."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..core import clock
from ..core.lease import own_state_of, state_of
from ..core.protocol import SECOND, Ask, Steps
from ..core.state import LeaseState
from ..core.timing import FIRST_TERM
from ..errors import AcquireTimeout, StoreUnavailable
from .api import PATIENCE, Api, Job
from .faults import Faults, install


def eventually(true: Callable[[], Any], within: float = PATIENCE, what: str = "") -> Any:
    """Look until it is so; an assertion error when it isn't in time."""
    ends = time.monotonic() + within
    while True:
        last = time.monotonic() >= ends  # before it looks: a look that takes long is not the last one
        if found := true():
            return found
        if last:
            raise AssertionError(f"not so within {within:g} s: {what or true}")
        time.sleep(0.005)


def in_time(act: Callable[[], float], bound: float, tries: int = 5) -> None:
    """``act`` says how long it took, which is ``bound`` at most; of a machine that stands still for a while now and
    then, the best of a few tries."""
    took = [act()]
    while min(took) > bound:
        assert len(took) < tries, f"longer than {bound:g} s each time: {took}"
        took.append(act())


def times_out(wait: Callable[[], Any], tries: int = 5) -> AcquireTimeout:
    """``wait`` ends with AcquireTimeout, which is returned; of a machine that stands still for as long as the last call
    may take, with StoreUnavailable now and then."""
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
    """One holding. Everything that is not here is the real one's: ``token``, ``valid``, ``remaining`` …"""

    def __init__(self, api: Api, real: Any) -> None:
        self.api = api
        self.real = real

    @property
    def state(self) -> LeaseState:
        """What the core keeps of it. Not of a lease of all_of or rlock."""
        return own_state_of(self.real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def release(self) -> bool:
        return bool(self.api.call(self.real.release))

    def let_go(self) -> bool:
        """As ``release``, of a lease so short that a store on a busy machine takes longer to answer than it lasts. Then
        the keeper goes on with it, and nobody knows that it was ours to the end: False."""
        try:
            return self.release()
        except StoreUnavailable:
            return False

    def renew(self, ttl: float | None = None) -> None:
        self.api.call(self.real.renew, ttl)

    def transfer(self) -> str:
        return str(self.api.call(self.real.transfer))

    def downgrade(self) -> Lease:
        return Lease(self.api, self.api.call(self.real.downgrade))

    def wait_lost(self, timeout: float = PATIENCE) -> bool:
        return self.api.wait_lost(self.real, timeout)

    def has_whole_term(self) -> bool:
        """Wait until it has more than the first term that another's release may have granted; False when that ran out
        before, on a machine that stood still."""
        eventually(lambda: self.real.remaining > FIRST_TERM or self.ran_out(), what="it is had for its whole ttl")
        return not self.ran_out()

    def ran_out(self) -> bool:
        """Whether its last term is over by the clock: who stood still for so long has lost it, and by no fault.

        One that another's release has granted begins with a first term, which is short, whatever its ttl."""
        return bool(clock.now() >= state_of(self.real).deadline)


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


class Election:
    """A candidate. ``terms`` are those that it has had."""

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
        """Stand, by itself, and lead until told to stop, unless ``elected(term)`` returns something."""

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

    def run(self, function: Callable[[], Any], timeout: float | None = None) -> Any:
        return self.api.call(self.real.run, function, timeout)

    def start(self, function: Callable[[], Any]) -> Job:
        """Run, by itself; ``function`` waits without holding up the loop when it returns a future of this handle."""
        return self.api.start(self.real.run, function)

    def outcome(self) -> Any:
        return self.api.call(self.real.outcome)

    def forget(self, every_version: bool = False) -> bool:
        return bool(self.api.call(self.real.forget, every_version))


class Group:
    """Members of one name. ``seen`` is what the callbacks were told."""

    def __init__(self, api: Api, real: Any) -> None:
        self.api = api
        self.real = real
        self.seen: list[tuple[str, str]] = []

    def join(self, data: Any = None) -> Lease:
        return Lease(self.api, self.api.call(self.real.join, data))

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
        for what in ("joined", "left", "failed"):
            self.api.call(getattr(self.real, f"on_{what}"), functools.partial(self._note, what))

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
        """Begin to drain, by itself."""
        return self.api.start(self.real.drain, grace)

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

    def run(self, steps: Steps[Any], limit: float = PATIENCE) -> Any:
        """Run one operation of the store with its driver."""
        return self.api.call(self.real._core.driver.run, steps, limit)

    def ask(self, name: str, attempt: str, ttl: float, **fields: Any) -> Any:
        return self.run(self.store.acquire(make_ask(name, attempt, ttl, self.owner, **fields)))

    def renewals(self, *asks: Any) -> Sequence[str]:
        found: Sequence[str] = self.run(self.store.renew(asks))
        return found


def make_ask(name: str, attempt: str, ttl: float, owner: str = "somebody", **fields: Any) -> Ask:
    return Ask(name, attempt, owner, fields.pop("kind", "lock"), fields.pop("data", None), int(ttl * SECOND), **fields)
