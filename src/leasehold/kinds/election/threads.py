"""``locks.election`` for threads. See :mod:`leasehold.kinds.election.leadership`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ...core import checks, listing
from ...core.effects import RETRY
from ...core.lease import registry_of
from ...errors import AcquireCancelled, LeaseLost, ShuttingDown, StoreUnavailable
from ...model import LeaseInfo
from ...runtime.thread_start import start_thread
from ...threads.cancel import Cancel, Stop
from ...threads.lease import Lease
from ...threads.runner import ThreadRegistry
from .leadership import BaseElection, BaseTerm, next_leader, watch

T = TypeVar("T")


class Term(BaseTerm):
    """One term of leadership; the callback of an election gets it. A thread cannot be stopped from outside: the
    callback has to check ``stopping`` or ``valid``, or call :meth:`check`.

    ``lease`` is the lease of the term. ``stopping`` is set when the callback has to stop, before the term ends.
    ``over`` says why, and is None while the callback leads. ``finished``: whether the callback has returned."""

    lease: Lease

    def __init__(self, lease: Lease, stop_before: float) -> None:
        self.stopping = threading.Event()
        super().__init__(lease, stop_before, registry_of(lease).new_bell())

    def _stop(self, reason: str) -> None:
        self.stopping.set()


class Election(BaseElection):
    """One leader among the candidates that call :meth:`run`. One object is one candidate. Made by
    :meth:`Locks.election`. ::

        def lead(term):
            while not term.stopping.wait(0.01):
                return f"worked with token {term.token}"

        locks.election("scheduler").run(lead)
    """

    _core: ThreadRegistry

    def _reset(self) -> None:
        super()._reset()
        self._stopped = Stop()

    def run(self, callback: Callable[[Term], T]) -> T | None:
        checks.callback(callback, "election", tasks=False)
        generation = self._begin_run()
        try:
            while self._in_same_process(generation) and (lease := self._campaign()) is not None:
                term = Term(lease, self._before)
                result = self._lead(term, callback)
                if term.failed is not None:
                    self._rest(term)
                elif term.over is None:
                    return result
            return None
        finally:
            if self._in_same_process(generation):
                self._core.on_drain.remove(self._drained)
                self._stopped.clear()
                self._running = False

    def _campaign(self) -> Lease | None:
        while True:
            try:
                return self._core.acquire(Lease, self._spec, None, self._stopped)
            except (AcquireCancelled, ShuttingDown):
                return None
            except StoreUnavailable:
                self._stopped.wait(RETRY)  # the acquire has logged it; a candidate retries until it is stopped

    def _lead(self, term: Term, callback: Callable[[Term], T]) -> T | None:
        try:
            with term.lease:
                self._term = term
                if self._stopped.is_set() or self._core.draining is not None:
                    term.end("the candidate was stopped")
                    return None
                # A leader without a watch could not be stopped in time. If no thread can be started, this raises.
                start_thread("leasehold-term", self._core.drive, watch(self._core, term))
                try:
                    result = callback(term)
                except Exception as error:
                    if not self._outlives(term, error):
                        raise
                    return None
                finally:
                    term.close()
                checks.has_run(result, "the callback of election")
                return result
        except LeaseLost:
            if term.over is None:
                raise
            return None
        finally:
            self._term = None

    def _rest(self, term: Term) -> None:
        try:
            self._core.drive(self._back_off(term, self._stopped.is_set()), Cancel(self._stopped))
        except AcquireCancelled:
            pass  # by stop()

    def stop(self) -> None:
        self._reset_if_forked()
        self._stopped.set()
        self.resign()

    def leader(self) -> LeaseInfo | None:
        return listing.first(self._core.call(self._core.store.inspect(self.name)))

    def observe(self, cancel: threading.Event | None = None) -> Iterator[LeaseInfo | None]:
        seen: Any = ""
        watched = None if cancel is None else Cancel(cancel)
        while True:
            try:
                leader = self._core.drive(next_leader(self._core, self.name, seen), watched)
            except (AcquireCancelled, ShuttingDown):
                return
            seen = leader and leader.token
            yield leader

    def __repr__(self) -> str:
        return f"<leasehold.Election {self.name!r}{' (leader)' if self.is_leader else ''}>"
