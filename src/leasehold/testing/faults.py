"""A network that loses and delays, between a ``Locks`` and any store.

Faults are set per operation of the store (``acquire``, ``renew``, ``release``, ``abandon`` …, or ``"*"``), for so many
calls or until ``mend``. They are what a client can live through:

- the request is lost: the store never hears of it;
- the answer is lost: the store has done it, and nobody learns of it;
- either comes late: later than the caller's limit is the same as lost, for the caller.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..core.protocol import Ask, Busy, Holding, Renewal, Reply, Steps, Store, T, TaskDriver, ThreadDriver, Together
from ..errors import StoreError, StoreUnavailable
from .inside import core as core_of

SLICE = 0.05
QUICK = 0.02
"""After how many seconds a lost call is noticed, by default."""


class Fault(NamedTuple):
    """One fault of a call: waits before and after it, and whether request and answer arrive."""

    before: float = 0.0
    sent: bool = True
    after: float = 0.0
    answered: bool = True


class Faults:
    """The faults from now on. ``calls`` counts the operations of the core."""

    def __init__(self) -> None:
        self._rules: dict[str, tuple[Fault, float]] = {}
        self._mutex = threading.Lock()
        self._mended = threading.Event()
        self._cuts: dict[str, int] = {}
        self._under_way = 0
        self._settled = threading.Condition(self._mutex)
        self.calls: Counter[str] = Counter()
        self.latency = 0.0
        """Seconds that every call takes in addition to the store's time, half of them on the way to the store."""
        self.deaf = False
        self.asked: dict[str, str] = {}
        """By name, the attempt that was last requested to hold it."""
        self.listening: set[str] = set()
        """The attempts, and "" for the keeper, for whom the driver was asked to listen."""
        self.wake: Callable[[str], object] = lambda attempt: None
        """Wakes an attempt for nothing, as a store may."""
        self.no_push = False
        """Whether the driver reports that it cannot listen, so that waiters poll."""

    def lose_request(self, operation: str = "*", times: float = float("inf"), noticed_after: float = QUICK) -> None:
        self._set(operation, Fault(noticed_after, sent=False), times)

    def lose_answer(self, operation: str = "*", times: float = float("inf"), noticed_after: float = QUICK) -> None:
        self._set(operation, Fault(after=noticed_after, answered=False), times)

    def delay_request(self, seconds: float, operation: str = "*", times: float = float("inf")) -> None:
        self._set(operation, Fault(before=seconds), times)

    def delay_answer(self, seconds: float, operation: str = "*", times: float = float("inf")) -> None:
        self._set(operation, Fault(after=seconds), times)

    def cut(self, operation: str, after: int) -> None:
        """Lose the connection during the next such operation: after that many of its requests were answered."""
        with self._mutex:
            self._cuts[operation] = after

    def die(self) -> None:
        """As if the process had died: no request and no wake-up arrives until ``mend``.

        Not during a call: a waiter that is about to be answered could still become the holder."""
        self.deaf = True
        self._set("*", Fault(QUICK, sent=False), float("inf"))
        self.settle()

    def settle(self) -> None:
        """Wait until every call that began before the newest rule has ended."""
        with self._settled:
            self._settled.wait_for(lambda: not self._under_way, timeout=30.0)

    def mend(self) -> None:
        """Remove all faults; calls that hang fail now."""
        with self._mutex:
            self._rules.clear()
            self._mended.set()
            self._mended = threading.Event()
        self.deaf = False

    def hang(self, seconds: float) -> None:
        self._mended.wait(seconds)

    async def hang_task(self, seconds: float) -> None:
        mended, ends = self._mended, time.monotonic() + seconds
        while not mended.is_set() and (left := ends - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(SLICE, left))

    def _set(self, operation: str, fault: Fault, times: float) -> None:
        with self._mutex:
            self._rules[operation] = (fault, times)

    def cut_off(self, operation: str, steps: Steps[T]) -> Steps[T]:
        """The steps of an operation, up to the fault."""
        with self._mutex:
            left = self._cuts.pop(operation, None)
        if left is None:
            return (yield from steps)
        try:
            request = next(steps)
            while left:
                left -= 1
                try:
                    answer = yield request
                except Exception as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(answer) if left else None
        except StopIteration as stop:
            result: T = stop.value
            return result
        steps.close()
        self.calls["cut"] += 1
        raise StoreUnavailable(f"the connection was cut in the middle of {operation}")

    def take(self, operation: str) -> Fault | None:
        """The fault of this call."""
        with self._mutex:
            self._under_way += 1
            self.calls[operation] += 1
            key = operation if operation in self._rules else "*"
            fault, times = self._rules.get(key, (None, 0.0))
            if fault is not None:
                if times <= 1:
                    del self._rules[key]
                else:
                    self._rules[key] = (fault, times - 1)
            return fault

    def done(self) -> None:
        """Note that a call has ended."""
        with self._settled:
            self._under_way -= 1
            self._settled.notify_all()


def install(locks: Any) -> Faults:
    """Put faults between a ``Locks``, of either side, and its store."""
    return install_into(core_of(locks))


def install_into(core: Any) -> Faults:
    if isinstance(core.store, Named):
        found: Faults = core.driver.faults
        return found
    faults = Faults()
    core.store = Named(core.store, faults)
    core.driver = (FaultyTasks if hasattr(core, "loop") else FaultyThreads)(core.driver, faults)
    return faults


class Named(Store):
    """A store whose operations are generators with the operation's name, so that a driver can distinguish them."""

    def __init__(self, inner: Store, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults
        self.scheme = inner.scheme
        self.fair = inner.fair
        self.lacks = inner.lacks
        self.keeps_places = inner.keeps_places

    def acquire(self, ask: Ask) -> Steps[Reply]:
        self.faults.asked[ask.name] = ask.attempt
        return (yield from self.faults.cut_off("acquire", self.inner.acquire(ask)))

    def acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        return (yield from self.faults.cut_off("acquire_all", self.inner.acquire_all(asks)))

    def keep_waiting(self, batch: Sequence[Ask]) -> Steps[Sequence[Busy | None]]:
        return (yield from self.faults.cut_off("keep_waiting", self.inner.keep_waiting(batch)))

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreError]]:
        return (yield from self.faults.cut_off("renew", self.inner.renew(batch)))

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        return (yield from self.faults.cut_off("release", self.inner.release(name, attempt, token, hint)))

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        return (yield from self.faults.cut_off("abandon", self.inner.abandon(name, attempt)))

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        return (yield from self.faults.cut_off("interrupt", self.inner.interrupt(name, force)))

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        return (yield from self.faults.cut_off("scan", self.inner.scan(prefix, after, count)))

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        return (yield from self.faults.cut_off("inspect", self.inner.inspect(name)))

    def read_note(self, name: str) -> Steps[str | None]:
        return (yield from self.faults.cut_off("read_note", self.inner.read_note(name)))

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Steps[bool]:
        return (yield from self.faults.cut_off("write_note", self.inner.write_note(name, attempt, token, text)))

    def read_clock(self, name: str) -> Steps[int | None]:
        return (yield from self.faults.cut_off("read_clock", self.inner.read_clock(name)))

    def tidy(self) -> Steps[None]:
        return (yield from self.faults.cut_off("tidy", self.inner.tidy()))


class _Faulty:
    """The part that both faulty drivers share: what does not wait is passed on."""

    def __init__(self, inner: Any, faults: Faults) -> None:
        self.inner = inner
        self.faults = faults
        self.on_ring = inner.on_ring
        inner.on_ring = self._rung
        faults.wake = self._rung

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _rung(self, attempt: str, *news: Any) -> None:
        if not (self.faults.deaf or self.faults.no_push):
            self.on_ring(attempt, *news)

    def forget(self, attempt: str) -> None:
        self.inner.forget(attempt)

    def after_fork(self) -> None:
        self.inner.after_fork()

    def _parts(self, steps: Steps[Any], limit: float) -> tuple[Fault, float, Callable[[], StoreUnavailable]]:
        """The fault, how long to wait before the call, and the error to raise if it is lost."""
        name: str = getattr(steps, "__name__", "")
        half = self.faults.latency / 2
        fault = self.faults.take(name) or Fault(before=half, after=half)
        return fault, min(fault.before, limit), lambda: StoreUnavailable(f"a fault was injected into {name}")


class FaultyThreads(_Faulty):
    inner: ThreadDriver

    def run(self, steps: Steps[T], limit: float) -> T:
        fault, pause, failure = self._parts(steps, limit)
        try:
            if pause:
                self.faults.hang(pause)
            if not fault.sent or pause >= limit:
                steps.close()
                raise failure()
            result = self.inner.run(steps, limit - pause)
        finally:
            self.faults.done()
        if fault.after:
            self.faults.hang(min(fault.after, max(0.0, limit - pause)))
        if not fault.answered or pause + fault.after >= limit:
            raise failure()
        return result

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        heard = not self.faults.no_push and self.inner.listen(attempt, busy)
        self.faults.listening.add(attempt)
        return heard

    def close(self) -> None:
        self.inner.close()


class FaultyTasks(_Faulty):
    inner: TaskDriver

    async def run(self, steps: Steps[T], limit: float) -> T:
        fault, pause, failure = self._parts(steps, limit)
        try:
            if pause:
                await self.faults.hang_task(pause)
            if not fault.sent or pause >= limit:
                steps.close()
                raise failure()
            result = await self.inner.run(steps, limit - pause)
        finally:
            self.faults.done()
        if fault.after:
            await self.faults.hang_task(min(fault.after, max(0.0, limit - pause)))
        if not fault.answered or pause + fault.after >= limit:
            raise failure()
        return result

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        heard = not self.faults.no_push and await self.inner.listen(attempt, busy)
        self.faults.listening.add(attempt)
        return heard

    async def close(self) -> None:
        await self.inner.close()
