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
from ..core.claim import RELEASED
from ..core.lease import BaseLease, enter, leave, loss_in_block, own_state_of, raise_if_lost
from ..core.state import BaseState
from ..core.timing import Duration
from ..errors import LeaseLost, StoreError
from ..kinds import handover
from .runner import TaskRegistry


class Lease(OfTasks, BaseLease):
    """One holding of a name. A context manager: the end of the block releases it.

    It ends with its block, with :meth:`release`, or when it is lost. A loss cancels the task that entered the block,
    and LeaseLost comes out of it; see ``on_lost`` of :meth:`Locks.lock`.

    Whether it can be trusted is computed from the clock at the moment of the question. ::

        async with locks.lock("invoice:42") as lease:
            lease.check()
            print(lease.token, lease.remaining)
    """

    __slots__ = ("_before", "_body", "_cancelled", "_cancelling", "_why")
    _core: TaskRegistry

    def __init__(self, core: TaskRegistry, state: BaseState) -> None:
        super().__init__(core, state)
        self._body: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._cancelled = False
        self._before = 0
        self._why = ""

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
        from ..stores import callers
        from ..stores.sql import transaction

        return await callers.run_async(self._core, connection, transaction.checking(self))

    async def __aenter__(self) -> Self:
        enter(self)
        try:
            self.check()
        except LeaseLost as error:  # the body must not begin
            await self.__aexit__(LeaseLost, error, None)
            raise
        if self._state.spec.at_loss == "cancel" and (body := asyncio.current_task()) is not None:
            self._body, self._cancelling = body, body.cancelling()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self)
        ours = self._end_cancellation(error)
        try:
            if self._state.offered:
                release.leave_to_heir(self._core, own_state_of(self))
            elif self.valid:
                await self.release()
            else:
                self._leave_to_keeper()
        except StoreError:
            pass  # reported as an event and in the log; the keeper retries, and the lease expires at the latest
        if ours and isinstance(error, asyncio.CancelledError) and (lost := loss_in_block(self)) is not None:
            raise lost from error
        raise_if_lost(self, error)

    def _end_cancellation(self, error: BaseException | None) -> bool:
        """No loss cancels the body from now on. Takes back a cancellation that one did; True if it was the only one.

        As in asyncio.timeout: if somebody else has cancelled the task too, that cancellation wins. A block that ends in
        another task than it began in has nothing to take back: the cancellation was that task's.

        A cancellation that the body had dealt with before the loss does not win: the task group of Python 3.11 and 3.12
        leaves its own one on the task. The ``error`` that ends the body shows which it was."""
        body, self._body = self._body, None
        if body is None or not self._cancelled or body is not asyncio.current_task():
            return False
        if body.cancelling() <= self._cancelling:
            return True
        left = body.uncancel()
        return left <= self._cancelling or (left <= self._before and error is not None and error.args == (self._why,))

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
        """Cancel the task that has entered the block, unless it is the one that closes or drains the ``Locks``: that
        goes on, and the block ends with LeaseLost."""
        body, lost = self._body, loss_in_block(self)
        if body is not None and lost is not None and not self._cancelled and body not in self._core.closers:
            self._before, self._why = body.cancelling(), str(lost)
            self._cancelled = body.cancel(self._why)

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
