"""How a lease is taken, waited for and taken over.

etcd has no clock to read. That a key is there is the truth about a lease, and every grant is a transaction that is
conditional on what was read: no holder since then, nobody ahead, one's own place still there.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core import clock
from ...core.protocol import SECOND, Ask, Busy, Grant, Holding, Missing, Refusal, Reply, Steps, Together
from ...core.timing import FIRST_TERM
from . import wire
from .errors import DRIVER_ERRORS, GrpcError
from .leases import EtcdLease
from .permit import HELD, StoredPermit
from .queue import EtcdQueue
from .session import MOST_OPERATIONS, EtcdSession, Held, NameView
from .wire import CREATE, EQUAL, GREATER, LESS, MOD, KeyValue, compare, delete, get, marked, put


def deletion(holder: StoredPermit | KeyValue) -> wire.EtcdCall:
    """Of a holder's key, if that is still as it was read."""
    return wire.txn([compare(EQUAL, MOD, holder.key, holder.mod)], [delete(holder.key)], [])


class Acquiring:
    """The operations ``acquire``, ``acquire_all`` and ``abandon``."""

    def __init__(self, session: EtcdSession, queue: EtcdQueue) -> None:
        self._session = session
        self._queue = queue

    def acquire(self, ask: Ask) -> Steps[Reply]:
        try:
            if ask.heir is not None:
                return (yield from self._inherit(ask))
            waits = ask.attempt in self._session.places
            return (yield from marked(self._acquire(ask), patient=not waits))
        except GrpcError as error:
            if error.full:  # the write may have been carried out all the same; deleting takes no space
                yield from self.withdraw(ask.name, ask.attempt)
            raise

    def _acquire(self, ask: Ask) -> Steps[Reply]:
        session = self._session
        if ask.attempt in session.places:
            yield from session.leases.settle()  # a place whose answer was lost is there now, or never will be
        # A name is often free. Else, looking costs the cluster less than a transaction that would take it.
        likely = ask.kept and ask.attempt not in session.behind
        view = None if likely else (yield from session.look(ask))
        while True:
            if view is None or view.fits(ask):
                granted, view = yield from self._take(ask, view)
                if granted is not None:
                    return granted
                assert view is not None
            mine = next((each for each in view.holders if each.attempt == ask.attempt), None)
            if mine is not None:
                granted = yield from self._claim(ask, mine)
                if granted is not None:
                    return granted
                view = yield from session.look(ask)
            elif (mismatch := view.shape(ask)) is not None:
                return mismatch
            elif view.fits(ask):
                continue
            elif ask.queue and not view.queued:
                view = yield from self._queue.join(ask, view)
            elif (idle := self._queue.idle_for(ask, view)) is not None and idle >= FIRST_TERM:
                if view.fits(ask, view.first):
                    granted, view = yield from self._take(ask, view, view.first)
                    if granted is not None:
                        return granted
                else:
                    view = yield from self._queue.pass_over(ask, view)
            elif view.queued and (yield from session.leases.for_waiting())[1]:
                view = yield from session.look(ask)  # our place is gone
            else:
                return (yield from self._busy(ask, view, idle))

    def _take(
        self, ask: Ask, view: NameView | None, over: StoredPermit | None = None
    ) -> Steps[tuple[Grant | None, NameView | None]]:
        """Take the name if nothing that was seen has changed for the worse; else see how it stands.

        ``over``: the first waiter, right ahead of us, is passed over in the same transaction. Were it gone before, the
        next behind us could take us for the one that has been first, and idle, all the while."""
        session = self._session
        epoch = yield from session.known_epoch()
        lease = yield from self._lease_for(ask)
        start, end = session.holders_of(ask.name)
        first, last = session.waiters_of(ask.name)
        place = session.places.get(ask.attempt)
        compares = [session.same_epoch(epoch), *lease.unfenced()]
        if view is None:
            compares.append(compare(EQUAL, CREATE, start, 0, end))
        else:
            compares.append(compare(LESS, MOD, start, view.revision + 1, end))
        changes = []
        if place is not None:
            if over is not None:
                compares += [compare(EQUAL, MOD, over.key, over.mod), compare(EQUAL, CREATE, first, 0, over.key)]
                changes.append(delete(over.key))
                first = over.key + b"\0"
            compares += [compare(GREATER, CREATE, place, 0), compare(EQUAL, CREATE, first, 0, place)]
            changes.append(delete(place))
        elif ask.fair or view is None:
            compares.append(compare(EQUAL, CREATE, first, 0, last))
        since = lease.refreshed
        changes.append(self._put_holder(ask, lease))
        result = yield from session.leases.write(lease, wire.txn(compares, changes, session.reads(ask)))
        if result is None:
            return None, (yield from session.look(ask))
        if not result.succeeded:
            view = session.view(ask, result, result.pages)
            if lease.fence and view.fits(ask, over):
                lease.doubt(lease.fence)  # nothing else is in the way
            return None, view
        session.left_queue(ask.attempt)
        session.idle.pop(ask.name, None)
        return self._granted(ask, result.revision + epoch, lease.number, since), None

    def _put_holder(self, ask: Ask, lease: EtcdLease) -> bytes:
        value = StoredPermit.taken(ask, self._session.id).dump()
        return put(self._session.holder_key(ask.name, ask.attempt), value, lease.number)

    def _claim(self, ask: Ask, mine: StoredPermit) -> Steps[Grant | None]:
        """It is ours already: the answer got lost, or came too late. A new term for it, or None.

        It is written anew, so that it stays, should this process be about to end it for being overdue."""
        session = self._session
        session.forget(ask.attempt)
        if mine.state != HELD:  # it was broken before we knew that it is ours: nobody uses it
            yield deletion(mine)
            return None
        epoch = yield from session.known_epoch()
        since = clock.now()
        same = put(mine.key, StoredPermit.taken(ask, session.id).dump(), mine.lease)
        try:
            if not wire.read_txn((yield wire.txn([compare(EQUAL, MOD, mine.key, mine.mod)], [same], []))).succeeded:
                return None
        except GrpcError as error:
            if error.lease_is_gone:
                return None
            raise
        if not (yield from session.leases.keep_alive([mine.lease]))[mine.lease]:
            return None
        return self._granted(ask, mine.create + epoch, mine.lease, since)

    def _lease_for(self, ask: Ask) -> Steps[EtcdLease]:
        """The lease to keep the holder alive. If that keeps others too, then none whose term is over."""
        if self._session.leases.will_renew(ask):
            yield from self.end_overdue(ask.attempt)
        return (yield from self._session.leases.for_holding(ask))

    def end_overdue(self, asking: str = "") -> Steps[None]:
        """End the holders that nobody renews any more, while the lease that they share is renewed for others.

        An acquire that asks for one of them anew meanwhile has removed it from the books, or writes its key."""
        session = self._session
        for held in session.overdue():
            if held.attempt == asking:
                continue
            page = yield from session.range(session.holder_key(held.name, held.attempt))
            if page.found and session.held.get(held.attempt) is held:
                yield deletion(page.found[0])
            if session.held.get(held.attempt) is held:
                session.forget(held.attempt)

    def _granted(self, ask: Ask, token: int, lease: int, since: float) -> Grant:
        until = since + ask.ttl / SECOND
        held = Held(ask.name, ask.attempt, token, lease, ask.rest, since, until, clock.now())
        self._session.held[ask.attempt] = held
        return Grant(token, since=since)

    # Taking over.

    def _inherit(self, ask: Ask) -> Steps[Reply]:
        """Put the asking attempt in the place of another's permit."""
        session = self._session
        assert ask.heir is not None
        attempt, token = ask.heir
        while True:
            epoch = yield from session.known_epoch()
            mine = yield from session.holder(ask.name, ask.attempt)
            if mine is not None and mine.state == HELD:
                granted = yield from self._claim(ask, mine)
                if granted is not None:
                    return granted
                continue
            old = yield from session.holder(ask.name, attempt)
            if old is None or old.create + epoch != token or old.state != HELD or old.weight < ask.weight:
                return Missing()
            ask = ask._replace(rest=max(ask.rest, old.left_of_rest()))
            lease = yield from self._lease_for(ask)
            since = lease.refreshed
            unchanged = [session.same_epoch(epoch), compare(EQUAL, MOD, old.key, old.mod), *lease.unfenced()]
            word = session.word_to(old)
            changes = [delete(old.key), self._put_holder(ask, lease), put(word, b"", lease.number)]
            call = wire.txn(unchanged, changes, [get(session.epoch_key)])
            result = yield from session.leases.write(lease, call)
            if result is None:
                continue
            if result.succeeded:
                yield wire.txn([], [delete(word)], [])
                if old.session != session.id:  # whoever has offered it may be gone
                    try:
                        yield from session.leases.revoke_left(old.name, old.attempt, old.lease)
                    except DRIVER_ERRORS:
                        pass  # then it runs out
                return self._granted(ask, result.revision + epoch, lease.number, since)
            session.learn_epoch(result.pages[0])

    # Waiting.

    def _busy(self, ask: Ask, view: NameView, idle: float | None) -> Steps[Busy]:
        holder = yield from self._in_the_way(view, ask.name)
        if not view.queued:
            return Busy(holder, None, None)
        if idle is None:
            return Busy(holder, view.ahead, None, self._queue.interests(ask, view))
        # The first is as good as gone from the queue: it takes what is there for it, or is passed over.
        return Busy(holder, view.ahead - 1, FIRST_TERM - idle, self._queue.interests(ask, view))

    def _in_the_way(self, view: NameView, name: str) -> Steps[Holding | None]:
        """For whoever gives up waiting: who holds the name, and for how long, as was known within the last second."""
        seen = yield from self._session.seen(view.holders[:1], {name: view.waiters}, old=1.0)
        return seen[0] if seen else None

    # Several names.

    def acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        try:
            outcome = yield from marked(self._acquire_all(asks), patient=True)
        except GrpcError as error:
            if error.full:
                for ask in asks:
                    yield from self.withdraw(ask.name, ask.attempt)
            raise
        if outcome is None or isinstance(outcome, Refusal):
            for ask in asks:
                yield from self._session.leases.revoke_own(ask.attempt)
        return outcome

    def _acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        """One transaction, on the condition that nobody holds any of the names or waits for it."""
        session = self._session
        reads = [read for ask in asks for read in session.reads(ask)]
        if len(reads) > MOST_OPERATIONS:
            return None
        while True:
            epoch = yield from session.known_epoch()
            compares, puts, leases = [session.same_epoch(epoch)], [], list[EtcdLease]()
            for ask in asks:
                lease = yield from self._lease_for(ask)
                leases.append(lease)
                holders, waiters = session.holders_of(ask.name), session.waiters_of(ask.name)
                compares += [compare(EQUAL, CREATE, first, 0, end) for first, end in (holders, waiters)]
                puts.append(self._put_holder(ask, lease))
            for lease in dict.fromkeys(leases):
                compares += lease.unfenced()
            since = [lease.refreshed for lease in leases]
            # They share the lease, or each has one of its own, which needs no fence.
            result = yield from session.leases.write(leases[0], wire.txn(compares, puts, reads))
            if result is None:
                for lease in leases:
                    session.leases.lost(lease)
                continue
            if result.succeeded:
                return [
                    self._granted(ask, result.revision + epoch, lease.number, refreshed)
                    for ask, lease, refreshed in zip(asks, leases, since, strict=True)
                ]
            each = len(reads) // len(asks)
            for place, ask in enumerate(asks):
                view = session.view(ask, result, result.pages[place * each : (place + 1) * each])
                if (mismatch := view.shape(ask)) is not None:
                    return Refusal(place, mismatch)
                if view.holders:
                    return Refusal(place, Busy((yield from self._in_the_way(view, ask.name)), None, None))
                if view.waiters:
                    return None  # whether the first of them is to be passed over, each acquire finds out
            for lease in leases:
                if lease.fence:
                    lease.doubt(lease.fence)  # nothing else is in the way

    # Giving up.

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        """Whatever is still on its way of this attempt must find that it comes too late."""
        try:
            yield from self._session.leases.settle()
        except GrpcError as error:
            if not error.full:
                raise  # else the fence is written later: until then no write that is on its way is carried out either
        return (yield from self.withdraw(name, attempt))

    def withdraw(self, name: str, attempt: str) -> Steps[bool]:
        """Delete what there is of an attempt."""
        session = self._session
        place = session.places.get(attempt)
        if place is None:
            waiting = yield from session.range(*session.waiters_of(name), keys_only=True)
            place = next((key.key for key in waiting.found if key.key.endswith(attempt.encode())), None)
        keys = [session.holder_key(name, attempt), *([place] if place else [])]
        steps = [get(each, keys_only=True) for each in keys] + [delete(each) for each in keys]
        result = wire.read_txn((yield wire.txn([], steps, [])))
        session.left_queue(attempt)
        session.forget(attempt)
        yield from session.leases.revoke_own(attempt)
        return any(page.found for page in result.pages)
