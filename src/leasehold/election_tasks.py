"""``locks.election`` for asyncio. See :mod:`leasehold.election`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine

from . import checks
from .aio import Lease, Locks
from .effects import RETRY
from .election import BaseElection, BaseTerm, next_leader, watch
from .errors import LeaseLost, ShuttingDown, StoreUnavailable
from .model import LeaseInfo
from .tasks import TaskCore
from .typed import Any, TypeVar

T = TypeVar("T")


class Term(BaseTerm):
    """One leadership. The callback is cancelled when it has to stop, ahead of the term's end."""

    lease: Lease

    def __init__(self, lease: Lease, stop_before: float) -> None:
        self.stopping = asyncio.Event()
        """Set when the callback has to stop."""
        self._body: asyncio.Task[Any] | None = None
        super().__init__(lease, stop_before, lease._core.new_bell())

    def _stop(self, reason: str) -> None:
        self.stopping.set()
        if self._body is not None:
            self._body.cancel(f"the term is over: {reason}")


def _give_back(standing: asyncio.Future[Lease]) -> None:
    """Nobody wants the lease any more, if it came in the same moment."""
    if not standing.cancelled() and standing.exception() is None:
        standing.result()._drop()


class Election(BaseElection):
    """One leader among those who call :meth:`run`."""

    _locks: Locks
    _core: TaskCore

    def _start_anew(self) -> None:
        super()._start_anew()
        self._standing: asyncio.Future[Lease] | None = None
        self._stopped = False

    async def run(self, callback: Callable[[Term], Coroutine[Any, Any, T]]) -> T | None:
        """Stand for election; when elected, run ``callback(term)`` as a task; stand again when the term was lost.

        Returns what the callback returns in a term that it was not told to stop; None after :meth:`stop`, and when the
        ``Locks`` is drained or closed."""
        checks.callback(callback, "election", tasks=True)
        begun = self._begin()
        try:
            while self._goes_on(begun) and (lease := await self._campaign()) is not None:
                term = Term(lease, self._before)
                result = await self._lead(term, callback)
                if term.over is None:
                    return result
            return None
        finally:
            if self._goes_on(begun):
                self._core.on_drain.remove(self._drained)
                self._running = self._stopped = False

    async def _campaign(self) -> Lease | None:
        while not self._stopped:
            standing = self._standing = asyncio.ensure_future(self._core.acquire(Lease, self._spec, None))
            try:
                await asyncio.wait({standing})
            except asyncio.CancelledError:
                standing.add_done_callback(_give_back)
                standing.cancel()
                await asyncio.wait({standing})  # unless this is cancelled too
                raise
            finally:
                self._standing = None
            if standing.cancelled():  # by stop()
                return None
            try:
                return standing.result()
            except ShuttingDown:
                return None
            except StoreUnavailable:
                await asyncio.sleep(RETRY)  # told by then; there is nothing to do but to go on
        return None

    async def _lead(self, term: Term, callback: Callable[[Term], Coroutine[Any, Any, T]]) -> T | None:
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        try:
            async with term.lease:
                self._term = term
                if self._stopped or self._core.draining is not None:
                    term.end("nobody wants it any more")
                    return None
                body: asyncio.Task[T] = asyncio.ensure_future(callback(term))
                term._body = body
                self._core.spawn(self._core.drive(watch(self._core, term)))
                try:
                    return await body
                finally:
                    term.close()
        except (LeaseLost, asyncio.CancelledError):
            # A cancellation from outside comes through the callback's task too, and wins.
            if term.over is None or task.cancelling() > cancelling:
                raise
            return None
        finally:
            self._term = None

    def stop(self) -> None:
        """Stand no longer: end the term if there is one, and have ``run`` return; if it has yet to begin, then."""
        self._here()
        self._stopped = True
        if self._standing is not None:
            self._standing.cancel()
        self.resign()

    async def leader(self) -> LeaseInfo | None:
        """Who leads now: ``owner``, ``token``, and the ``data`` that it stood with."""
        return await self._locks.inspect(self.name)

    async def observe(self) -> AsyncIterator[LeaseInfo | None]:
        """Each leader in turn, the present one first; None while there is nobody. Asks the store once a second.

        Ends when the ``Locks`` is closed."""
        seen: Any = ""
        while True:
            try:
                leader = await self._core.drive(next_leader(self._core, self.name, seen))
            except ShuttingDown:
                return
            seen = leader and leader.token
            yield leader

    def __repr__(self) -> str:
        return f"<leasehold.aio.Election {self.name!r}{' (leader)' if self.is_leader else ''}>"
