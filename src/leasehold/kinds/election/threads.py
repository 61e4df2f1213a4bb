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
    """One term of leadership. A thread cannot be stopped from outside: the callback has to check ``stopping``, or call
    ``check()``."""

    lease: Lease

    def __init__(self, lease: Lease, stop_before: float) -> None:
        self.stopping = threading.Event()
        """Set when the callback has to stop, before the term ends."""
        super().__init__(lease, stop_before, registry_of(lease).new_bell())

    def _stop(self, reason: str) -> None:
        self.stopping.set()


class Election(BaseElection):
    """One leader among those who call :meth:`run`."""

    _core: ThreadRegistry

    def _start_anew(self) -> None:
        super()._start_anew()
        self._stopped = Stop()

    def run(self, callback: Callable[[Term], T]) -> T | None:
        """Be a candidate: wait until elected, then call ``callback(term)`` in this thread; if the term is lost, repeat.

        Returns the callback's result once it returns within its term; None after :meth:`stop`, and when the ``Locks``
        is drained or closed. An error of the callback ends the candidacy and is raised, except a LeaseLost after the
        term was over. Raises RuntimeError if this candidate is running already. ::

            def lead(term):
                while term.valid:
                    work(term.token)

            locks.election("scheduler").run(lead)
        """
        checks.callback(callback, "election", tasks=False)
        begun = self._begin()
        try:
            while self._goes_on(begun) and (lease := self._campaign()) is not None:
                term = Term(lease, self._before)
                result = self._lead(term, callback)
                if term.over is None:
                    return result
            return None
        finally:
            if self._goes_on(begun):
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
                    checks.has_run(result, "the callback of election")
                    return result
                finally:
                    term.close()
        except LeaseLost:
            if term.over is None:
                raise
            return None
        finally:
            self._term = None

    def stop(self) -> None:
        """End the candidacy, and the term if there is one: ``run`` returns. If ``run`` has not begun, it returns when
        it is called."""
        self._here()
        self._stopped.set()
        self.resign()

    def leader(self) -> LeaseInfo | None:
        """The current leader (``owner``, ``token``, ``data``), or None."""
        return listing.first(self._core.call(self._core.store.inspect(self.name)))

    def observe(self, cancel: threading.Event | None = None) -> Iterator[LeaseInfo | None]:
        """Yield the current leader, then each new one; None while nobody leads. Reads the store once a second.

        Ends when ``cancel`` is set, and when the ``Locks`` is closed."""
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
