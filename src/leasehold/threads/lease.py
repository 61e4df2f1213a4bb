"""``Lease``, for threads: the handle on a lease, and the event of its loss."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ..contract.habits import OfThreads
from ..core import clock, keeper, release
from ..core.lease import BaseLease, enter, leave, own_state_of, raise_if_lost
from ..core.log import ERROR, log
from ..core.timing import Duration
from ..errors import LeaseLost, StoreError
from ..kinds import handover
from ..runtime.thread_start import aside
from ..runtime.timer import NAP
from ..runtime.wakeups import ThreadBell
from .runner import ThreadRegistry


class Lease(OfThreads, BaseLease):
    """One holding of a name. A context manager: the end of the block releases it.

    Any thread can use it. It ends with its block, with :meth:`release`, or when it is lost. A block whose lease was
    lost ends with LeaseLost; see ``on_lost`` of :meth:`Locks.lock`.

    Whether it can be trusted is computed from the clock at the moment of the question. ::

        with locks.lock("invoice:42") as lease:
            lease.check()
            print(lease.token, lease.remaining)
    """

    __slots__ = ()
    _core: ThreadRegistry

    @property
    def lost(self) -> threading.Event:
        while True:
            seen = self._lost
            event: LostEvent | None = seen() if seen is not None else None
            if event is not None:
                return event
            event = LostEvent(self)
            ref = weakref.ref(event)
            with self._core.mutex:
                if self._lost is seen:  # else another thread was faster
                    self._lost = ref
                    return event

    def renew(self, ttl: Duration | None = None) -> None:
        self._core.drive(keeper.renew(self._core, own_state_of(self), ttl))

    def release(self) -> bool:
        return self._core.drive(release.release(self._core, own_state_of(self)))

    def transfer(self) -> str:
        handover.check(self)
        self._core.drive(keeper.renew(self._core, own_state_of(self), None, offered=True))
        return handover.promise(self)

    def downgrade(self) -> Lease:
        writer, caller, done = own_state_of(self), object(), False
        try:
            spec, left = release.downgraded(self._core, writer, caller)
            reader = self._core.acquire(Lease, spec, left, None)
            done = True
            return reader
        finally:
            release.after_replacing(self._core, writer, caller, done)

    def in_transaction(self, connection: Any) -> int:
        from ..stores import callers
        from ..stores.sql import transaction

        return callers.run(self._core, connection, transaction.checking(self))

    def __enter__(self) -> Self:
        enter(self)
        try:
            self.check()
        except LeaseLost as error:  # the body must not begin
            self.__exit__(LeaseLost, error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self)
        try:
            if self._state.offered:
                release.leave_to_heir(self._core, own_state_of(self))
            elif self.valid:
                self.release()
            else:
                self._leave_to_keeper()
        except StoreError:
            pass  # reported as an event and in the log; the keeper retries, and the lease expires at the latest
        raise_if_lost(self, error)

    def _wake(self) -> None:
        event = self._lost() if self._lost is not None else None
        if event is not None:
            event.set()

    def _announce(self) -> None:
        self._wake()
        if self._callbacks:
            self._call(self._callbacks)

    def _call(self, callbacks: list[Callable[..., object]]) -> None:
        def run() -> None:
            for callback in callbacks:
                try:
                    callback(self)
                except Exception as error:
                    log(ERROR, "an on_lost callback of lease %r raised an error", self.name, exc=error)

        aside("leasehold-callback", run)


class LostEvent(threading.Event):
    """An event that is computed from the clock, and so right even before the timer sets it.

    It keeps the lease alive, the lease keeps it weakly: there is no cycle, and an unused ``lost`` costs nothing. It is
    an Event by type only: a waiter that is interrupted could leave the mutex of a real one locked.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._waiting: dict[ThreadBell, None] = {}

    def is_set(self) -> bool:
        return self._lease.lost_reason is not None

    def set(self) -> None:
        for bell in list(self._waiting):
            bell.ring()

    def clear(self) -> None:
        """A loss is final."""

    def wait(self, timeout: float | None = None) -> bool:
        ends = None if timeout is None else clock.now() + timeout
        bell = ThreadBell()
        self._waiting[bell] = None
        try:
            # The thread that sets it may be interrupted just before it rings, so the clock is checked, too.
            while not self.is_set():
                left = NAP if ends is None else min(NAP, ends - clock.now())
                if left <= 0:
                    return False
                if bell.wait(left):
                    return True
            return True
        finally:
            self._waiting.pop(bell, None)
