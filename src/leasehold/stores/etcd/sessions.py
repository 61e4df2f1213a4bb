"""etcd's leases, which end what a dead process holds: few of them, each for many keys.

- Holders that are renewed until they are released share one lease per length of ttl; a grant on it counts from the
  lease's last renewal, which is never more than ``FRESH`` of the ttl ago.
- All others (``renew=False``, ``max_hold``, ``beat_every``, a ttl that was changed) have one of their own.
- Waiters share one of ``WAITER_TTL``, whatever their ttl.

**A late write.** A transaction whose answer was lost may still be on its way, and would attach a key to a lease that
we go on keeping alive: a holder that nobody knows of. So each write on a shared lease is conditional on the revision of
a key ``f/<lease>``, which is not there as a rule. After a write of unknown outcome that key is written (``fence``):
from then on the write has happened, or never will. A lease of one's own is revoked instead, and known until it is.
"""

from __future__ import annotations

import os
from hashlib import blake2b

from ...core import clock
from ...core.protocol import SECOND, Ask, Steps
from ...core.timing import WAITER_TTL
from ...errors import StoreNotReady
from . import wire
from .errors import Refused
from .holders import Holders
from .wire import EQUAL, MOD, Call, Result, compare, put

FRESH = 0.01
"""Of a lease's length: how long ago it may have been renewed when another holder joins."""
_LAST = 0.05
"""What is said to be left of a lease that is there in its last second."""
ALIVE = b"~"
"""Ends the key whose deletion tells us that a lease with holders is gone, at once and not at the next renewal."""
_MOST_ENDS = 64
WAITING_FRESH = 4.0
"""How long ago the waiters' lease may have been renewed: they look every 5 s."""


def whole(ttl: int) -> int:
    """Microseconds in whole seconds, which is what etcd knows."""
    return -(-ttl // SECOND)


class Lease:
    """One lease of etcd's. ``refreshed`` is the local time of sending of what last renewed it."""

    __slots__ = ("_doubt", "fence", "fence_key", "id", "length", "marked", "refreshed", "shared")

    def __init__(self, number: int, length: int, refreshed: float, fence_key: bytes) -> None:
        self.id = number
        self.length = length
        self.refreshed = refreshed
        self.shared = bool(fence_key)
        self.fence_key = fence_key
        self.fence = 0
        self.marked = False
        """Whether the key is there that tells us when the lease is gone."""
        self._doubt = -1
        """The newest fence behind which something that we wrote may yet arrive."""

    @property
    def settled(self) -> bool:
        """Whether all that we wrote on it has happened, or never will."""
        return self._doubt < 0

    @property
    def unsure(self) -> bool:
        """Whether it has to be fenced before more is written. One that is not shared is revoked in the end instead."""
        return self.shared and not self.settled

    def unfenced(self) -> list[bytes]:
        return [compare(EQUAL, MOD, self.fence_key, self.fence)] if self.shared else []

    def doubt(self, fence: int) -> None:
        """Whether a write that is conditional on this fence arrives is not known, or another has written the fence."""
        self._doubt = max(self._doubt, fence)

    def fenced(self, fence: int) -> None:
        """An answer; of two that were asked for at once, the older may come last. It settles what came before it."""
        self.fence = max(self.fence, fence)
        if self._doubt < fence:
            self._doubt = -1


class Sessions(Holders):
    """The leases of one ``Locks``, and which of its holders are on them."""

    def __init__(self, base: bytes, session: bytes) -> None:
        super().__init__()
        self._base = base
        self._session = session
        self._leases: dict[int, Lease] = {}
        self._by_length: dict[int, Lease] = {}
        self.waiting: Lease | None = None
        self._own: dict[str, set[int]] = {}
        """Attempts with leases of their own."""
        self._asked: dict[int, float] = {}
        """Leases that may have been granted, but nobody has heard; and when they will have run out if they were."""
        self.rests: list[tuple[float, int]] = []
        """Leases that the driver is to end, and when: see ``EtcdStore.end_rest``."""
        self._ends: dict[int, tuple[float, float]] = {}
        """Leases of others: when they end, and when we were told."""

    def tidy(self) -> None:
        super().tidy()
        now = clock.now()
        for lease in list(self._leases.values()):
            if lease.refreshed + lease.length < now - 3600:
                self.lost(lease)
        for number, over in list(self._asked.items()):
            if over < now - 3600:
                self._asked.pop(number, None)
        for attempt, numbers in list(self._own.items()):
            for number in tuple(numbers):
                if number not in self._leases and number not in self._asked:
                    self._disown(attempt, number)

    def length(self, number: int) -> int:
        lease = self._leases.get(number)
        return -1 if lease is None else lease.length

    def lasts(self, number: int, ttl: int) -> bool:
        """Whether a lease has so much left without being renewed."""
        lease = self._leases.get(number)
        return lease is not None and lease.refreshed + lease.length >= clock.now() + ttl / SECOND

    def is_shared(self, number: int) -> bool:
        lease = self._leases.get(number)
        return lease is not None and lease.shared

    # Getting a lease to attach a key to.

    def renews(self, ask: Ask) -> bool:
        """Whether ``for_holding`` is about to renew a lease that others share."""
        lease = self._by_length.get(whole(ask.ttl)) if ask.kept else None
        return lease is not None and clock.now() - lease.refreshed > FRESH * lease.length

    def for_holding(self, ask: Ask) -> Steps[Lease]:
        length = whole(ask.ttl)
        if not ask.kept:
            return (yield from self.own(ask.name, ask.attempt, ask.ttl))
        while True:
            lease = self._by_length.get(length)
            if lease is None or not (yield from self._fresh(lease, FRESH * length)):
                made = yield from self._grant(_random(), length, self._base)
                lease = yield from self._one_of(self._by_length.get(length), made)
                if lease is made:
                    self._by_length[length] = made
            if lease.marked or (yield from self._mark(lease)):
                return lease

    def _mark(self, lease: Lease) -> Steps[bool]:
        """Put the key that goes with a lease. Whoever has made the lease may have failed to. False when it is gone."""
        alive = self._base + b"s/%s\0%x%s" % (self._session, lease.id, ALIVE)
        if (yield from self.write(lease, wire.txn([], [put(alive, b"", lease.id)], []))) is None:
            return False
        lease.marked = True
        return True

    def for_waiting(self) -> Steps[Lease]:
        lease = self.waiting
        if lease is None or not (yield from self._fresh(lease, WAITING_FRESH)):
            made = yield from self._grant(_random(), int(WAITER_TTL), self._base)
            lease = self.waiting = yield from self._one_of(self.waiting, made)
        return lease

    def _one_of(self, there: Lease | None, made: Lease) -> Steps[Lease]:
        """The one that another has made at the same time, if there is such: then ours is not needed."""
        if there is None or there.unsure or made.refreshed - there.refreshed > FRESH * there.length:
            return made
        yield from self.revoke(made.id)
        return there

    def own(self, name: str, attempt: str, ttl: int) -> Steps[Lease]:
        """A lease for one attempt; asked for again, the same one."""
        length = whole(ttl)
        number = _own_number(name, attempt, length)
        known = self._leases.get(number)
        if known is not None and (yield from self._fresh(known, 0.0)):
            return known
        return (yield from self._grant(number, length, b"", attempt))

    def for_rest(self, name: str, attempt: str, rest: float) -> Steps[int]:
        """A lease that nobody renews; longer than asked for, if etcd has none so short."""
        number = _number(f"{attempt} rest {name}")
        try:
            yield wire.lease_grant(number, whole(int(rest * SECOND)))
        except Refused as error:
            if not error.lease_is_there:
                raise
        return number

    def shortest(self) -> Steps[int]:
        """The shortest lease that this server keeps, in seconds."""
        number = _random()
        answer = wire.read((yield wire.lease_grant(number, 1))[0])
        yield from self.revoke(number)
        return int(wire.first(answer, 3))

    def _fresh(self, lease: Lease, age: float) -> Steps[bool]:
        """See that a lease was renewed no longer ago than this. False when it is gone."""
        if lease.unsure:
            yield from self._fence(lease)
            if lease.id not in self._leases:
                return False
        if clock.now() - lease.refreshed <= age:
            return True
        alive = yield from self._keep_alive([lease.id])
        return alive[lease.id]

    def _grant(self, number: int, length: int, base: bytes, attempt: str = "") -> Steps[Lease]:
        """Ask for a lease: for keys below ``base`` that share it, or for an attempt by itself."""
        sent = clock.now()
        self._asked[number] = sent + length
        if attempt:
            with self._mutex:
                self._own.setdefault(attempt, set()).add(number)
        try:
            granted = wire.first(wire.read((yield wire.lease_grant(number, length))[0]), 3)
        except Refused as error:
            if not error.lease_is_there:
                if not error.unknown:  # there is none, or (the server is full) one that keeps nothing alive
                    self._asked.pop(number, None)
                    self._disown(attempt, number)
                raise
            # The answer to an earlier one was lost. Since when it runs is not known: it starts again now.
            sent = clock.now()
            if not (yield from self._keep_alive([number]))[number]:
                return (yield from self._grant(number, length, base, attempt))
            granted = wire.first(wire.read((yield wire.lease_time_to_live(number))[0]), 4)
        if granted > length:
            yield from self.revoke(number)
            self._disown(attempt, number)
            raise StoreNotReady(
                f"ttl too short: etcd keeps no lease shorter than {granted} s (because of its election timeout), so a "
                f"dead holder would be replaced late: use a ttl above {granted - 1} s"
            )
        lease = Lease(number, length, sent, base + b"f/%x" % number if base else b"")
        self._leases[number] = lease
        self._asked.pop(number, None)
        return lease

    # Renewing.

    def renew(self, terms: dict[int, int]) -> Steps[dict[int, bool]]:
        """Which of the leases are alive, and so for a term of (at least) so many microseconds from now."""
        alive, due = {}, []
        for number, ttl in terms.items():
            if self.lasts(number, ttl):
                alive[number] = True  # and whoever only asks must not get more
            else:
                due.append(number)
        if due:
            alive.update((yield from self._keep_alive(due)))
        return alive

    def _keep_alive(self, numbers: list[int]) -> Steps[dict[int, bool]]:
        sent = clock.now()
        answers = yield wire.lease_keep_alive(numbers)
        alive = dict.fromkeys(numbers, False)
        for answer in answers:
            fields = wire.read(answer)
            number = wire.first(fields, 2)
            if wire.first(fields, 3) > 0:
                alive[number] = True
                if number in self._leases:
                    self._leases[number].refreshed = sent
            elif number in self._leases:
                self.lost(self._leases[number])
        return alive

    def left(self, number: int, old: float = 0.0) -> Steps[float | None]:
        """Seconds that a lease has left, at least; None when it is gone. etcd tells whole ones, rounded down.

        What was told at most ``old`` seconds ago will do; so will what we know of a lease of our own."""
        now = clock.now()
        if old:
            ours = self._leases.get(number)
            if ours is not None:
                return max(ours.refreshed + ours.length - now, _LAST)
            ends, told = self._ends.get(number, (0.0, -old))
            if now - told < old:
                return max(ends - now, _LAST)
        answer = yield wire.lease_time_to_live(number)
        left = wire.first(wire.read(answer[0]), 3)
        if left < 0:
            return None
        if len(self._ends) >= _MOST_ENDS:
            self._ends.clear()
        self._ends[number] = (now + left, now)
        return max(float(left), _LAST)

    # Writes of unknown outcome.

    def write(self, lease: Lease, call: Call) -> Steps[Result | None]:
        """A transaction that attaches a key to the lease; None when that is gone."""
        fence = lease.fence
        try:
            answer = yield call
        except BaseException as error:  # also when whoever drives us gives up
            if isinstance(error, Refused) and error.lease_is_gone:
                self.lost(lease)
                return None
            if not isinstance(error, Refused) or error.unknown:
                lease.doubt(fence)
            raise
        return wire.read_txn(answer)

    def fence(self) -> Steps[None]:
        for lease in list(self._leases.values()):
            if lease.unsure:
                yield from self._fence(lease)

    def _fence(self, lease: Lease) -> Steps[None]:
        try:
            result = wire.read_txn((yield wire.txn([], [put(lease.fence_key, b"", lease.id)], [])))
        except Refused as error:
            if not error.lease_is_gone:
                raise
            self.lost(lease)
        else:
            lease.fenced(result.revision)

    # The end.

    def lost(self, lease: Lease) -> None:
        """It is gone, and every key with it."""
        self._leases.pop(lease.id, None)
        if self._by_length.get(lease.length) is lease:
            del self._by_length[lease.length]
        if self.waiting is lease:
            self.waiting = None

    def revoke(self, number: int) -> Steps[None]:
        """It is forgotten when that was answered: until then it may be there, and what is on its way may find it."""
        try:
            yield wire.lease_revoke(number)
        except Refused as error:
            if not error.lease_is_gone:
                raise
        if number in self._leases:
            self.lost(self._leases[number])
        self._asked.pop(number, None)

    def revoke_own(self, attempt: str) -> Steps[None]:
        for number in tuple(self._own.get(attempt, ())):
            yield from self.revoke(number)
            self._disown(attempt, number)

    def _disown(self, attempt: str, number: int) -> None:
        with self._mutex:
            if left := self._own.get(attempt, set()) - {number}:
                self._own[attempt] = left
            else:
                self._own.pop(attempt, None)

    def may_hold(self, attempt: str) -> bool:
        """Whether something that is on its way could attach a key to a lease that this attempt has for itself."""
        own = [self._leases.get(number) for number in tuple(self._own.get(attempt, ()))]
        return any(lease is not None and not lease.settled for lease in own)

    def revoke_left(self, name: str, attempt: str, number: int) -> Steps[None]:
        """Revoke a lease of another's, if it is one that this attempt had for itself."""
        length = wire.first(wire.read((yield wire.lease_time_to_live(number))[0]), 4)
        if number == _own_number(name, attempt, length):
            yield from self.revoke(number)

    def end(self) -> Steps[None]:
        """Revoke all but what was offered: that runs out, or is another's by then."""
        left = {number for attempt in tuple(self._offered) for number in self._own.get(attempt, ())}
        for number in (*self._leases, *self._asked):
            if number not in left:
                yield from self.revoke(number)


def _random() -> int:
    return int.from_bytes(os.urandom(8), "big") >> 1 or 1


def _own_number(name: str, attempt: str, length: int) -> int:
    return _number(f"{attempt} {length} {name}")


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1 or 1
