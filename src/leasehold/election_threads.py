"""``locks.election`` for threads. See :mod:`leasehold.election`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from . import checks
from .effects import RETRY
from .election import BaseElection, BaseTerm, next_leader, watch
from .errors import AcquireCancelled, LeaseLost, ShuttingDown, StoreUnavailable
from .lock import Lease, Locks
from .model import LeaseInfo
from .starting import start_thread
from .threads import Cancel, Stop, ThreadCore
from .typed import Any, TypeVar

T = TypeVar("T")


class Term(BaseTerm):
    """One leadership. A thread can't be stopped from outside: its callback asks ``stopping``, or uses ``check()``."""

    lease: Lease

    def __init__(self, lease: Lease, stop_before: float) -> None:
        self.stopping = threading.Event()
        """Set when the callback has to stop, ahead of the term's end."""
        super().__init__(lease, stop_before, lease._core.new_bell())

    def _stop(self, reason: str) -> None:
        self.stopping.set()


class Election(BaseElection):
    """One leader among those who call :meth:`run`."""

    _locks: Locks
    _core: ThreadCore

    def _start_anew(self) -> None:
        super()._start_anew()
        self._stopped = Stop()

    def run(self, callback: Callable[[Term], T]) -> T | None:
        """Stand for election; when elected, call ``callback(term)`` in this thread; stand again when the term was lost.

        Returns what the callback returns in a term that it was not told to stop; None after :meth:`stop`, and when the
        ``Locks`` is drained or closed. A LeaseLost that comes out of a term that is over counts as stopping."""
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
                self._stopped.wait(RETRY)  # told by then; there is nothing to do but to go on

    def _lead(self, term: Term, callback: Callable[[Term], T]) -> T | None:
        try:
            with term.lease:
                self._term = term
                if self._stopped.is_set() or self._core.draining is not None:
                    term.end("nobody wants it any more")
                    return None
                # A leader that nobody could stop in time must not lead: if there is no thread for that, this fails.
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
        """Stand no longer: end the term if there is one, and have ``run`` return; if it has yet to begin, then."""
        self._here()
        self._stopped.set()
        self.resign()

    def leader(self) -> LeaseInfo | None:
        """Who leads now: ``owner``, ``token``, and the ``data`` that it stood with."""
        return self._locks.inspect(self.name)

    def observe(self, cancel: threading.Event | None = None) -> Iterator[LeaseInfo | None]:
        """Each leader in turn, the present one first; None while there is nobody. Asks the store once a second.

        Ends when ``cancel`` is set and when the ``Locks`` is closed."""
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
