"""How a name is waited for: places in order of arrival, and a first waiter that does not take what is there for it."""

from __future__ import annotations

from ...core import clock
from ...core.protocol import Ask, Busy, Steps
from ...core.timing import FIRST_TERM
from . import wire
from .permit import StoredPermit
from .session import NEAR, EtcdSession, NameView
from .subscriptions import IDLE, TAKING, Interest
from .wire import EQUAL, MOD, compare, delete, put


class EtcdQueue:
    """The queues of all names, as one process sees them."""

    def __init__(self, session: EtcdSession) -> None:
        self._session = session

    def join(self, ask: Ask, view: NameView) -> Steps[NameView]:
        """Take a place at the end of the queue."""
        session = self._session
        lease, _ = yield from session.leases.for_waiting()
        place = session.waiters_of(ask.name)[0] + b"%016x" % view.revision + ask.attempt.encode()
        session.places[ask.attempt] = place
        value = StoredPermit.taken(ask, session.id).dump()
        reads = session.reads(ask)
        call = wire.txn(lease.unfenced(), [put(place, value, lease.number), *reads], reads)
        result = yield from session.leases.write(lease, call)
        if result is None or not result.succeeded:
            session.left_queue(ask.attempt)
        if result is None:
            return (yield from session.look(ask))
        if not result.succeeded:
            lease.doubt(lease.fence)
        return session.view(ask, result, result.pages)

    def idle_for(self, ask: Ask, view: NameView) -> float | None:
        """How long the name is known to be there for the first waiter. None: it is not there, or we are the first."""
        first, idle = view.first, self._session.idle
        if first is None or view.free(ask.limit) < first.weight or (view.queued and view.ahead == 0):
            idle.pop(ask.name, None)
            return None
        now = clock.now()
        known = idle.get(ask.name)
        if known is None or known[0] not in (b"", first.key) or (not known[0] and now - known[1] > 2 * FIRST_TERM):
            known = (first.key, now)
        idle[ask.name] = (first.key, known[1])
        return now - known[1]

    def pass_over(self, ask: Ask, view: NameView) -> Steps[NameView]:
        """The first waiter does not take what is there for it: it is dead, or else it will notice and queue again."""
        assert view.first is not None
        self._session.idle.pop(ask.name, None)
        reads = self._session.reads(ask)
        unchanged = [compare(EQUAL, MOD, view.first.key, view.first.mod)]
        result = wire.read_txn((yield wire.txn(unchanged, [delete(view.first.key), *reads], reads)))
        return self._session.view(ask, result, result.pages)

    def interests(self, ask: Ask, view: NameView) -> tuple[Interest, ...]:
        """What a waiter needs to know. The first: that a holder is gone. Everybody else: that the one ahead is gone,
        and (NEAR the head) that a holder is gone, or (further back) that it has come near the head."""
        place = self._session.places.get(ask.attempt)
        if place is None:
            return ()
        holders, since = self._session.holders_of(ask.name), view.revision + 1
        if view.ahead == 0:
            return (Interest(TAKING, ask.name, *holders, since),)
        if view.ahead < NEAR:
            ahead = Interest(TAKING, ask.name, view.before[0], place + b"\0", since)
            return (ahead, Interest(IDLE, ask.name, *holders, since, view.ahead - 1))
        return (Interest(TAKING, ask.name, view.before[-1], place + b"\0", since),)

    def holder_is_gone(self, interest: Interest) -> Busy:
        """What a waiter behind the first is told: to give the first time to take the name."""
        idle = self._session.idle
        known = idle.get(interest.name)
        if known is None or not known[0]:  # what it has been since a look is kept
            idle[interest.name] = (b"", clock.now())
        return Busy(None, interest.later, FIRST_TERM)
