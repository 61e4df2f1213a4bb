"""A store that answers what a test says, and a ``Locks`` of asyncio on it, on a clock that the test moves.

It follows the protocol of every store (``leasehold.core.protocol``). Time passes only by ``advance``, so that each
moment is exact: when the store is asked, and for how long a lease can be trusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from leasehold import aio
from leasehold.core.protocol import RENEWED, Ask, Busy, Grant, Reply, Steps, Store, run_steps
from leasehold.testing.virtual import VirtualLoop, VirtualRegistry

T0 = 100.0
"""What the clock shows at first."""


class Scripted:
    """The world of one test. ``replies`` are given to acquires, one after the other; ``holdings`` to each inspect."""

    def __init__(self, keeps_places: bool = False, **options: Any) -> None:
        self.now = T0
        self.replies: list[Reply] = []
        self.holdings: Any = lambda: []
        self.asked: list[tuple[float, str, Any]] = []
        """When the store was sent which operation, and about what."""
        self.loop = VirtualLoop(lambda: self.now)
        self.driver = _Driver(self)
        self._core = VirtualRegistry(
            _Store(keeps_places),
            self.driver,
            lambda: self.now,
            namespace="",
            owner="me",
            kinds=options.pop("kinds", None),
            defaults=options,
        )
        self.locks = aio.Locks(self._core)

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *exc: object) -> None:
        closing = self.start(self.locks.close())
        self.advance(30.0)
        closing.result()
        self.loop.end()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin to run a task, as far as it gets without time."""
        task = self.loop.create_task(work)
        self.advance(0.0)
        return task

    def advance(self, seconds: float) -> None:
        """Let time pass, from one moment at which something is due to the next."""
        end = self.now + seconds
        while (due := min(self.loop.next_at(), self._core.next_deadline)) <= end:
            self.now = max(self.now, due)
            self._turn()
        self.now = end

    def stall(self, seconds: float) -> None:
        """Let time pass while nothing runs."""
        self.now += seconds
        self.advance(0.0)

    def _turn(self) -> None:
        if self._core.next_deadline <= self.now:
            self._core.expire()
        if self.loop.next_at() <= self.now:
            self.loop.turn()

    def acquires(self) -> list[float]:
        """When the store was asked for a lease."""
        return [when for when, operation, _ in self.asked if operation == "acquire"]

    def push(self, news: Grant | Busy | None) -> None:
        """Send the waiter a wake-up, which may carry news."""
        ask: Ask = next(what for _, operation, what in reversed(self.asked) if operation == "acquire")
        self.driver.on_ring(*((ask.attempt,) if news is None else (ask.attempt, news)))

    def answer(self, operation: str, what: Any) -> Any:
        self.asked.append((self.now, operation, what))
        match operation:
            case "acquire":
                return self.replies.pop(0)
            case "renew":
                return [RENEWED for _ in what]
            case "inspect":
                return self.holdings()
        return True


class _Store:
    scheme = "scripted"
    fair = True
    lacks: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, keeps_places: bool) -> None:
        self.keeps_places = keeps_places

    def __getattr__(self, operation: str) -> Any:
        if operation.startswith("_"):
            raise AttributeError(operation)
        if operation in ("acquire_all", "give_back"):  # which a store may leave out
            return partial(getattr(Store, operation), self)

        def steps(*arguments: Any) -> Steps[Any]:
            return (yield operation, arguments[0] if arguments else None)

        return steps


class _Driver:
    def __init__(self, test: Scripted) -> None:
        self.test = test
        self.on_ring: Any = None

    async def run(self, steps: Steps[Any], limit: float) -> Any:
        return run_steps(steps, lambda request: self.test.answer(*request))

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        return True

    async def close(self) -> None: ...

    def forget(self, attempt: str) -> None: ...

    def after_fork(self) -> None: ...

    def new_loop(self) -> None: ...

    def close_at_exit(self) -> None: ...
