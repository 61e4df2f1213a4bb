"""How a lease is taken, waited for and taken over."""

from __future__ import annotations

from typing import NamedTuple

from ...core import clock
from ...core.protocol import SECOND, Ask, Busy, Grant, Missing, Reply, Steps
from ...core.timing import FIRST_TERM
from . import wire
from .errors import DRIVER_ERRORS, Refused
from .haste import patient
from .holders import Held
from .permit import HELD, Permit
from .reading import NEAR, Reading, View
from .sessions import Lease
from .wire import CREATE, EQUAL, GREATER, LESS, MOD, VALUE, KeyValue, compare, delete, get, put

TAKING, IDLE, NEARING = "taking", "idle", "nearing"
SOON = 0.2
"""How long one far back in the queue may leave it open whether it has missed something: most hear more until then. If
it is the first by now, those behind it pass it over after a first term; and if the first is dead, that has one more."""


class Watch(NamedTuple):
    """Deletions that a waiter is to hear of: ``[key, end)``, from ``revision`` on.

    IDLE: of a holder, by those right behind the first in the queue, which is called too; only if it does nothing is it
    the turn of one of them, ``later`` places later. NEARING: of the one three ahead, at ``key``: from now on we are one
    of them, and are to hear of what ``then`` says. For neither the store has to be asked. The first of ``then`` is the
    end of the same range, the one right ahead and our own place: that is told by this watch, before and after."""

    kind: str
    name: str
    key: bytes
    end: bytes
    revision: int
    later: int = 0
    then: tuple[Watch, ...] = ()


def deletion(holder: Permit | KeyValue) -> wire.Call:
    """Of a holder's key, if that is still as it was read."""
    return wire.txn([compare(EQUAL, MOD, holder.key, holder.mod)], [delete(holder.key)], [])


class Asking(Reading):
    """All that ``acquire`` does."""

    def acquire(self, ask: Ask) -> Steps[Reply]:
        try:
            # Whoever is in the queue claims what is there for it.
            asking = self._acquire(ask) if ask.attempt in self._places else patient(self._acquire(ask))
            return (yield from asking)
        except Refused as error:
            if error.full:
                yield from self._withdraw(
                    ask.name, ask.attempt
                )  # it may be there all the same; deleting takes no space
            raise

    def _acquire(self, ask: Ask) -> Steps[Reply]:
        if ask.heir is not None:
            return (yield from self._inherit(ask, ask.heir))
        if ask.attempt in self._places:
            yield from self.sessions.fence()  # a place whose answer was lost is there now, or never will be
        # Often it is free. Else, looking costs the cluster less than a transaction that would take it.
        likely = ask.kept and ask.attempt not in self._behind
        view = None if likely else (yield from self._look(ask))
        while True:
            if view is None or self._fits(ask, view):
                granted, view = yield from self._take(ask, view)
                if granted is not None:
                    return granted
                assert view is not None
            mine = next((each for each in view.holders if each.attempt == ask.attempt), None)
            if mine is not None:
                if mine.state == HELD:
                    granted = yield from self._again(ask, mine)
                    if granted is not None:
                        return granted
                else:  # it was broken before we heard that it is ours: nobody uses it, and it is not to be in our way
                    self.sessions.forget(ask.attempt)
                    yield deletion(mine)
                view = yield from self._look(ask)
                continue
            if (mismatch := view.shape(ask)) is not None:
                return mismatch
            if self._fits(ask, view):
                continue
            if ask.queue and not view.queued:
                view = yield from self._queue(ask, view)
                continue
            idle = self._idle_for(ask, view)
            if idle is not None and idle >= FIRST_TERM:
                if self._fits(ask, view, view.first):
                    granted, view = yield from self._take(ask, view, view.first)
                    if granted is not None:
                        return granted
                    assert view is not None
                else:
                    view = yield from self._pass_over(ask, view)
                continue
            if view.queued:
                before = self.sessions.waiting
                if (yield from self.sessions.for_waiting()) is not before:
                    view = yield from self._look(ask)  # our place is gone
                    continue
            holder = yield from self._in_the_way(view, ask.name)
            if not view.queued:
                return Busy(holder, None, None)
            if idle is None:
                return Busy(holder, view.ahead, None, self._watches(ask, view))
            # The first is as good as gone from the queue: it takes what is there for it, or is passed over.
            return Busy(holder, view.ahead - 1, FIRST_TERM - idle, self._watches(ask, view))

    def _fits(self, ask: Ask, view: View, over: Permit | None = None) -> bool:
        """Whether it is there for us; if we are right behind ``over``, the first in the queue, once that is gone."""
        if over is not None:
            turn = view.queued and view.ahead == 1 and view.first == over
        else:
            turn = view.ahead == 0 if view.queued else not view.waiters or not ask.fair
        ours = any(each.attempt == ask.attempt for each in view.holders)
        return turn and not ours and view.shape(ask) is None and view.free(ask.limit) >= ask.weight

    def _take(self, ask: Ask, view: View | None, over: Permit | None = None) -> Steps[tuple[Grant | None, View | None]]:
        """Take it if nothing that was seen has changed for the worse; else see how it stands.

        ``over``: the first waiter, right ahead of us, is passed over in the same transaction. Were it gone before, the
        next behind us could take us for the one that has been first, and idle, all the while."""
        epoch = yield from self._known_epoch()
        lease = yield from self._lease_for(ask)
        start, end = self.holders_of(ask.name)
        first, last = self.waiters_of(ask.name)
        key = start + ask.attempt.encode()
        place = self._places.get(ask.attempt)
        compares = [compare(EQUAL, VALUE, self._epoch_key, b"%d" % epoch), *lease.unfenced()]
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
        value = Permit.taken(ask, self.session).dump()
        call = wire.txn(compares, [*changes, put(key, value, lease.id)], self._reads(ask))
        result = yield from self.sessions.write(lease, call)
        if result is None:
            return None, (yield from self._look(ask))
        if not result.succeeded:
            view = self._view(ask, result, result.pages)
            if lease.fence and self._fits(ask, view, over):
                lease.doubt(lease.fence)  # nothing else is in the way
            return None, view
        self._left(ask.attempt)
        self._idle.pop(ask.name, None)
        token = result.revision + epoch
        return self._granted(ask, token, lease.id, since), None

    def _again(self, ask: Ask, mine: Permit) -> Steps[Grant | None]:
        """It is ours already: its answer got lost, or came too late. A new term for it.

        It is written anew, so that it stays, should we be about to end it for being overdue."""
        self.sessions.forget(ask.attempt)
        epoch = yield from self._known_epoch()
        since = clock.now()
        same = put(mine.key, Permit.taken(ask, self.session).dump(), mine.lease)
        try:
            if not wire.read_txn((yield wire.txn([compare(EQUAL, MOD, mine.key, mine.mod)], [same], []))).succeeded:
                return None
        except Refused as error:
            if error.lease_is_gone:
                return None
            raise
        alive = yield from self.sessions.renew({mine.lease: ask.ttl})
        if not alive.get(mine.lease):
            return None
        token = mine.create + epoch
        return self._granted(ask, token, mine.lease, since)

    def _lease_for(self, ask: Ask) -> Steps[Lease]:
        """What is to keep it alive. If that keeps others too, then none whose term is over."""
        if self.sessions.renews(ask):
            yield from self._end_overdue(ask.attempt)
        return (yield from self.sessions.for_holding(ask))

    def _end_overdue(self, asking: str = "") -> Steps[None]:
        """End what nobody renews any more, while the lease that it shares is renewed for others."""
        for held in self.sessions.overdue():
            if held.attempt != asking:
                yield from self._end(held)

    def _end(self, held: Held) -> Steps[None]:
        """Its term is over.

        Unless it is being asked for anew. Then it is no longer on our books, or its key is another than we have read.
        """
        if self.sessions.held.get(held.attempt) is not held:
            return
        key = yield from self._holder_key(held.name, held.attempt)
        if self.sessions.held.get(held.attempt) is not held:
            return
        if key is not None:
            yield deletion(key)
        if self.sessions.held.get(held.attempt) is held:
            self.sessions.forget(held.attempt)

    def _granted(self, ask: Ask, token: int, lease: int, since: float) -> Grant:
        shared = self.sessions.is_shared(lease)
        until = since + ask.ttl / SECOND
        terms = (since, until, until, clock.now())
        self.sessions.holds(Held(ask.name, ask.attempt, token, lease, shared, ask.rest, *terms))
        return Grant(token, since=since)

    def _inherit(self, ask: Ask, heir: tuple[str, int]) -> Steps[Reply]:
        """Put the asking attempt in the place of another's permit."""
        start = self.holders_of(ask.name)[0]
        while True:
            epoch = yield from self._known_epoch()
            mine = yield from self._holder(ask.name, ask.attempt)
            if mine is not None and mine.state == HELD:
                granted = yield from self._again(ask, mine)
                if granted is None:
                    continue
                return granted
            old = yield from self._holder(ask.name, heir[0])
            if old is None or old.create + epoch != heir[1] or old.state != HELD or old.weight < ask.weight:
                return Missing()
            ask = ask._replace(rest=max(ask.rest, old.left_of_rest()))
            lease = yield from self._lease_for(ask)
            since = lease.refreshed
            compares = [
                compare(EQUAL, VALUE, self._epoch_key, b"%d" % epoch),
                compare(EQUAL, MOD, old.key, old.mod),
                *lease.unfenced(),
            ]
            word = self._word_to(old)
            value = Permit.taken(ask, self.session).dump()
            new = put(start + ask.attempt.encode(), value, lease.id)
            changes = [delete(old.key), new, put(word, b"", lease.id)]
            result = yield from self.sessions.write(lease, wire.txn(compares, changes, [get(self._epoch_key)]))
            if result is None:
                continue
            if result.succeeded:
                yield wire.txn([], [delete(word)], [])
                yield from self._end_left(old)
                return self._granted(ask, result.revision + epoch, lease.id, since)
            self._learn_epoch(result.pages[0])

    def _end_left(self, old: Permit) -> Steps[None]:
        """What was offered has a lease of its own, and whoever offered it may be gone."""
        if old.session != self.session.decode():
            try:
                yield from self.sessions.revoke_left(old.name, old.attempt, old.lease)
            except DRIVER_ERRORS:
                pass  # then it runs out

    def _queue(self, ask: Ask, view: View) -> Steps[View]:
        """Take a place at the end of the queue."""
        lease = yield from self.sessions.for_waiting()
        place = self.waiters_of(ask.name)[0] + b"%016x" % view.revision + ask.attempt.encode()
        self._places[ask.attempt] = place
        value = Permit.taken(ask, self.session).dump()
        reads = self._reads(ask)
        call = wire.txn(lease.unfenced(), [put(place, value, lease.id), *reads], reads)
        result = yield from self.sessions.write(lease, call)
        if result is None:
            self._left(ask.attempt)
            return (yield from self._look(ask))
        if not result.succeeded:
            lease.doubt(lease.fence)
            self._left(ask.attempt)
        return self._view(ask, result, result.pages)

    def _idle_for(self, ask: Ask, view: View) -> float | None:
        """For how long, as far as we know, the name has been there for the first waiter, who is not us; None: not."""
        first = view.first
        if first is None or view.free(ask.limit) < first.weight or (view.queued and view.ahead == 0):
            self._idle.pop(ask.name, None)
            return None
        now = clock.now()
        known = self._idle.get(ask.name)
        if known is None or known[0] not in (b"", first.key) or (not known[0] and now - known[1] > 2 * FIRST_TERM):
            known = (first.key, now)
        self._idle[ask.name] = (first.key, known[1])
        return now - known[1]

    def _pass_over(self, ask: Ask, view: View) -> Steps[View]:
        """The first waiter does not take what is there for it: it is dead, or else it will notice and queue again."""
        assert view.first is not None
        self._idle.pop(ask.name, None)
        reads = self._reads(ask)
        unchanged = [compare(EQUAL, MOD, view.first.key, view.first.mod)]
        result = wire.read_txn((yield wire.txn(unchanged, [delete(view.first.key), *reads], reads)))
        return self._view(ask, result, result.pages)

    def _watches(self, ask: Ask, view: View) -> tuple[Watch, ...]:
        place = self._places.get(ask.attempt)
        if place is None:
            return ()
        held, since = self.holders_of(ask.name), view.revision + 1
        if view.ahead == 0:
            return (Watch(TAKING, ask.name, *held, since),)

        last = Watch(TAKING, ask.name, view.before[0], place + b"\0", since)
        idle = Watch(IDLE, ask.name, *held, since, min(view.ahead, NEAR - 1) - 1)
        if view.ahead < NEAR:
            return (last, idle)
        entrance = view.before[-1]  # whoever has this many ahead is not one of the first
        return (Watch(NEARING, ask.name, entrance, last.end, since, then=(last, idle)),)

    def _withdraw(self, name: str, attempt: str) -> Steps[bool]:
        """Delete what there is of an attempt."""
        key = self._places.get(attempt) or (yield from self._find_place(name, attempt))
        holder = self.holders_of(name)[0] + attempt.encode()
        keys = [each for each in (holder, key) if each]
        steps = [get(each, keys_only=True) for each in keys] + [delete(each) for each in keys]
        result = wire.read_txn((yield wire.txn([], steps, [])))
        self._left(attempt)
        self.sessions.forget(attempt)
        yield from self.sessions.revoke_own(attempt)
        return any(page.found for page in result.pages)

    def _word_to(self, holder: Permit) -> bytes:
        """The key whose appearance calls a holder."""
        return self.base + b"s/" + holder.session.encode() + b"\0" + holder.attempt.encode()

    def heard(self, watch: Watch) -> Busy | None:
        """A key of a watch was deleted. What its waiter is told: to ask, or (a Busy) to give the first waiter time."""
        if watch.kind != IDLE:
            return None
        known = self._idle.get(watch.name)
        if known is None or not known[0]:  # what it has been since a look is kept
            self._idle[watch.name] = (b"", clock.now())
        return Busy(None, watch.later, FIRST_TERM)

    def may_have_missed(self, watch: Watch) -> Busy | None:
        """It began after its waiter's look. What that is told: to ask, or, if it was not near the head, to ask soon."""
        return None if watch.kind == TAKING else Busy(None, 0, SOON)
