"""``locks.election`` for asyncio. See :mod:`leasehold.kinds.election.leadership`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from ...core import checks, listing
from ...core.effects import RETRY
from ...core.lease import own_state_of, registry_of
from ...core.release import drop
from ...errors import LeaseLost, ShuttingDown, StoreUnavailable
from ...model import LeaseInfo
from ...tasks.lease import Lease
from ...tasks.runner import TaskRegistry
from .leadership import BaseElection, BaseTerm, next_leader, watch

T = TypeVar("T")


class Term(BaseTerm):
    """One term of leadership; the callback of an election gets it. The callback is cancelled when it has to stop,
    before the term ends.

    ``lease`` is the lease of the term. ``stopping`` is set when the callback has to stop. ``over`` says why, and is
    None while the callback leads. ``finished``: whether the callback has returned."""

    lease: Lease

    def __init__(self, lease: Lease, stop_before: float) -> None:
        self.stopping = asyncio.Event()
        self._body: asyncio.Future[Any] | None = None
        super().__init__(lease, stop_before, registry_of(lease).new_bell())

    def _stop(self, reason: str) -> None:
        self.stopping.set()
        if self._body is not None:
            self._body.cancel(f"the term is over: {reason}")


def _release_late_grant(standing: asyncio.Future[Lease]) -> None:
    """Release the lease if it was granted just when the candidate was cancelled."""
    if not standing.cancelled() and standing.exception() is None:
        lease = standing.result()
        drop(registry_of(lease), own_state_of(lease))


class Election(BaseElection):
    """One leader among the candidates that call :meth:`run`. One object is one candidate. Made by
    :meth:`Locks.election`. ::

        async def lead(term):
            return f"worked with token {term.token}"

        await locks.election("scheduler").run(lead)
    """

    _core: TaskRegistry

    def _reset(self) -> None:
        super()._reset()
        self._standing: asyncio.Future[Any] | None = None
        """What stop() cancels: the campaign, or the pause before the next one."""
        self._stopped = False

    async def run(self, callback: Callable[[Term], Coroutine[Any, Any, T]]) -> T | None:
        checks.callback(callback, "election", tasks=True)
        generation = self._begin_run()
        try:
            while self._in_same_process(generation) and (lease := await self._campaign()) is not None:
                term = Term(lease, self._before)
                result = await self._lead(term, callback)
                if term.failed is not None:
                    await self._rest(term)
                elif term.over is None:
                    return result
            return None
        finally:
            if self._in_same_process(generation):
                self._core.on_drain.remove(self._drained)
                self._running = self._stopped = False

    async def _campaign(self) -> Lease | None:
        while not self._stopped:
            standing = asyncio.ensure_future(self._core.acquire(Lease, self._spec, None))
            self._standing = standing
            try:
                await asyncio.wait({standing})
            except asyncio.CancelledError:
                standing.add_done_callback(_release_late_grant)
                standing.cancel()
                await asyncio.wait({standing})  # (this wait may be cancelled too)
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
                await asyncio.sleep(RETRY)  # the acquire has logged it; a candidate retries until it is stopped
        return None

    async def _lead(self, term: Term, callback: Callable[[Term], Coroutine[Any, Any, T]]) -> T | None:
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        try:
            async with term.lease:
                self._term = term
                if self._stopped or self._core.draining is not None:
                    term.end("the candidate was stopped")
                    return None
                try:
                    work = callback(term)
                    if inspect.isawaitable(work):
                        body: asyncio.Future[T] = asyncio.ensure_future(work)
                        term._body = body
                        self._core.spawn(self._core.drive(watch(self._core, term)))
                        return await body
                except Exception as error:
                    if task.cancelling() > cancelling or not self._outlives(term, error):
                        raise
                    return None
                except asyncio.CancelledError as error:
                    # Neither the candidate was cancelled nor is the term over: what the callback awaited was.
                    ends = term.over is not None or task.cancelling() > cancelling
                    if ends or not self._outlives(term, error):
                        raise
                    return None
                finally:
                    term.close()
                raise TypeError(f"the callback of election returned {type(work).__name__}: it must be async")
        except (LeaseLost, asyncio.CancelledError):
            # A cancellation from outside also cancels the callback's task. It wins over the end of the term.
            if term.over is None or task.cancelling() > cancelling:
                raise
            return None
        finally:
            self._term = None

    async def _rest(self, term: Term) -> None:
        resting = self._standing = asyncio.ensure_future(self._core.drive(self._back_off(term, self._stopped)))
        try:
            await asyncio.wait({resting})
        finally:
            self._standing = None
            resting.cancel()

    def stop(self) -> None:
        self._reset_if_forked()
        self._stopped = True
        if self._standing is not None:
            self._standing.cancel()
        self.resign()

    async def leader(self) -> LeaseInfo | None:
        return listing.first(await self._core.call(self._core.store.inspect(self.name)))

    async def observe(self) -> AsyncIterator[LeaseInfo | None]:
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
