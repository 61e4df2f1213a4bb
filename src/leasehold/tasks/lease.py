"""``Lease``, for asyncio: the handle on a lease, and the event of its loss.

Renewal runs in the event loop: a loop that is blocked past the deadline loses its leases, and a log line says where it
was blocked.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ..contract.habits import OfTasks
from ..core import keeper, release
from ..core.claim import HANDED_OVER, RELEASED
from ..core.lease import BaseLease, enter, leave, own_state_of
from ..core.state import BaseState
from ..core.timing import Duration
from ..errors import LeaseLost, StoreError
from ..kinds import handover
from .runner import TaskRegistry


class Lease(OfTasks, BaseLease):
    """One holding of a name. A context manager: the end of the block releases it.

    It ends with its block, with :meth:`release`, or when it is lost.

    Whether it can be trusted is computed from the clock at the moment of the question. ::

        async with locks.lock("invoice:42") as lease:
            lease.check()
            print(lease.token, lease.remaining)
    """

    __slots__ = ("_body", "_cancelled", "_cancelling")
    _core: TaskRegistry

    def __init__(self, core: TaskRegistry, state: BaseState) -> None:
        super().__init__(core, state)
        self._body: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._cancelled = False

    @property
    def lost(self) -> asyncio.Event:
        with self._core.mutex:
            event: LostEvent | None = self._lost() if self._lost is not None else None
            if event is None:
                event = LostEvent(self)
                self._lost = weakref.ref(event)
                if self._state.end not in (None, RELEASED):
                    event.set()
        return event

    async def renew(self, ttl: Duration | None = None) -> None:
        await self._core.drive(keeper.renew(self._core, own_state_of(self), ttl))

    async def release(self) -> bool:
        return await self._core.drive(release.release(self._core, own_state_of(self)))

    async def transfer(self) -> str:
        handover.check(self)
        await self._core.drive(keeper.renew(self._core, own_state_of(self), None, offered=True))
        return handover.promise(self)

    async def downgrade(self) -> Lease:
        writer, caller, done = own_state_of(self), object(), False
        try:
            spec, left = release.downgraded(self._core, writer, caller)
            reader = await self._core.acquire(Lease, spec, left)
            done = True
            return reader
        finally:
            release.after_replacing(self._core, writer, caller, done)

    async def in_transaction(self, connection: Any) -> int:
        from ..stores.sql import transaction as sql

        return await sql.run_async(self._core, connection, sql.checking(self))

    async def __aenter__(self) -> Self:
        enter(self)
        if self._state.spec.on_lost == "cancel":
            self._body = asyncio.current_task()
            assert self._body is not None
            self._cancelling = self._body.cancelling()
            if self.lost_reason is not None:  # lost already: the body has not begun, so there is nothing to cancel
                await self.__aexit__(None, None, None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self)
        body, self._body = self._body, None
        # As in asyncio.timeout: if somebody else has cancelled the task too, that cancellation wins.
        ours = body is not None and self._cancelled and body.uncancel() <= self._cancelling
        try:
            if self._state.offered:
                release.leave_to_heir(self._core, own_state_of(self))
            else:
                await self.release()
        except StoreError:
            pass  # reported as an event and in the log; the keeper retries, and the lease expires at the latest
        reason = self.lost_reason
        if reason is None or (reason == HANDED_OVER and not ours):
            return
        if ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise LeaseLost(self.name, reason) from error
        if kind is None and self._state.spec.on_lost in ("raise", "cancel"):
            raise LeaseLost(self.name, reason)

    def _announce(self) -> None:
        self._core.in_loop(self._announce_in_loop)

    def _wake(self) -> None:
        event = self._lost() if self._lost is not None else None
        if event is not None:
            event.set()

    def _announce_in_loop(self) -> None:
        self._wake()
        self._cancel_body()
        self._call(self._callbacks)

    def _cancel_body(self) -> None:
        if self._body is not None and not self._cancelled:
            self._cancelled = True
            self._body.cancel(f"lease {self.name!r} is lost: {self.lost_reason}")

    def _call(self, callbacks: list[Callable[..., object]]) -> None:
        for callback in callbacks:
            self._core.call_back(callback, self)


class LostEvent(asyncio.Event):
    """An event that is computed from the clock, and so right even before the loop sets it."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self._lease = lease

    def is_set(self) -> bool:
        return self._lease.lost_reason is not None

    async def wait(self) -> bool:  # type: ignore[override]
        return self.is_set() or await super().wait()
