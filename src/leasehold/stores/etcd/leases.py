"""etcd's leases, which end what a dead process holds: few of them, each for many keys.

- Holders that are renewed until they are released share one lease per length of ttl. A grant on it counts from the
  lease's last renewal, which is never more than ``FRESH`` of the ttl ago.
- All others (``renew=False``, ``max_hold``, ``beat_every``, a longer ttl chosen later) have a lease of their own. Its
  number is made of attempt, name and length: an attempt that asks twice finds it.
- Waiters share one of ``WAITER_TTL``, whatever their ttl.

**A late write.** A transaction whose answer was lost may still arrive, and attach a key to a shared lease that this
process keeps alive: a holder that nobody knows of. So each write on a shared lease is conditional on the revision of a
key ``f/<lease>``, which does not exist as a rule. After a write of unknown outcome that key is written (``settle``):
from then on the write has happened, or never will. A lease of one attempt is revoked instead.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import blake2b

from ...core import clock
from ...core.protocol import SECOND, Ask, Steps
from ...core.timing import WAITER_TTL
from ...errors import StoreNotReady
from . import wire
from .errors import GrpcError
from .wire import EQUAL, MOD, EtcdCall, TxnResult, compare, put

FRESH = 0.01
"""Of a lease's length: how long ago it may have been renewed when another holder joins."""
WAITING_FRESH = 4.0
"""How long ago the waiters' lease may have been renewed: they look every 5 s."""
MARK = b"~"
"""Ends the key ``s/<session>\\0<lease>~``, whose deletion tells this process at once that a shared lease is gone."""
_WAITERS = 0
_LAST = 0.05
"""What is said to be left of a lease that is in its last second."""
_MOST_SEEN = 64
_LONG_AGO = 3600.0


def whole(ttl: int) -> int:
    """Microseconds in whole seconds, which is what etcd knows."""
    return -(-ttl // SECOND)


@dataclass(slots=True, eq=False)
class EtcdLease:
    """One lease of etcd's."""

    number: int
    length: int
    fence_key: bytes = b""
    """Only of a lease that holders or waiters share."""
    attempt: str = ""
    """Only of a lease that one attempt has for itself."""
    refreshed: float = field(default_factory=clock.now)
    """The local time of sending of what last renewed it."""
    granted: bool = False
    marked: bool = False
    fence: int = 0
    _doubt: int = -1
    """The newest fence behind which a write may yet arrive."""

    @property
    def shared(self) -> bool:
        return bool(self.fence_key)

    @property
    def settled(self) -> bool:
        """Whether every write on the lease has happened, or never will."""
        return self._doubt < 0

    @property
    def unsure(self) -> bool:
        """Whether the fence must be written before anything else."""
        return self.shared and not self.settled

    def unfenced(self) -> list[bytes]:
        return [compare(EQUAL, MOD, self.fence_key, self.fence)] if self.shared else []

    def doubt(self, fence: int) -> None:
        """It is unknown whether a write that is conditional on this fence arrives, or another has written the fence."""
        self._doubt = max(self._doubt, fence)

    def fenced(self, fence: int) -> None:
        """An answer. Of two fences that were written at once the older may be answered last: it settles less."""
        self.fence = max(self.fence, fence)
        if self._doubt < fence:
            self._doubt = -1

    def lasts(self, ttl: int) -> bool:
        """Whether the lease lives for so many more microseconds without a renewal. Unknown, so no, while its grant is
        unanswered: the server may have had the lease since an earlier request."""
        return self.granted and self.refreshed + self.length >= clock.now() + ttl / SECOND


class EtcdLeases:
    """The leases of one ``Locks``, from when they are asked for until they are known to be gone."""

    def __init__(self, base: bytes, session: bytes) -> None:
        self._base = base
        self._session = session
        self._all: dict[int, EtcdLease] = {}
        self._shared: dict[int, EtcdLease] = {}
        """By length; beside them that of the waiters."""
        self._own: dict[str, dict[int, EtcdLease]] = {}
        """By attempt: the leases that it has for itself."""
        self._seen: dict[int, tuple[float, float]] = {}
        """Leases of others: when they end, and when the server said so."""

    def get(self, number: int) -> EtcdLease | None:
        return self._all.get(number)

    def is_shared(self, number: int) -> bool:
        lease = self._all.get(number)
        return lease is not None and lease.shared

    def tidy(self) -> None:
        long_ago = clock.now() - _LONG_AGO
        for lease in list(self._all.values()):
            if lease.refreshed + lease.length < long_ago:
                self.lost(lease)

    # A lease to attach a key to.

    def will_renew(self, ask: Ask) -> bool:
        """Whether ``for_holding`` is about to renew a lease that others share."""
        lease = self._shared.get(whole(ask.ttl)) if ask.kept else None
        return lease is not None and clock.now() - lease.refreshed > FRESH * lease.length

    def for_holding(self, ask: Ask) -> Steps[EtcdLease]:
        if not ask.kept:
            return (yield from self.own(ask.name, ask.attempt, ask.ttl))
        length = whole(ask.ttl)
        while True:
            lease = yield from self._for_all(length, length, FRESH * length)
            if lease.marked or (yield from self._mark(lease)):
                return lease

    def for_waiting(self) -> Steps[tuple[EtcdLease, bool]]:
        """The lease of the waiters, and whether it is another than before: then all places in the queue are gone."""
        before = self._shared.get(_WAITERS)
        lease = yield from self._for_all(_WAITERS, int(WAITER_TTL), WAITING_FRESH)
        return lease, lease is not before

    def _for_all(self, key: int, length: int, age: float) -> Steps[EtcdLease]:
        """A lease that many share, renewed at most ``age`` seconds ago."""
        while True:
            lease = self._shared.get(key)
            if lease is None:
                number = _random()
                lease = yield from self._grant(EtcdLease(number, length, self._base + b"f/%x" % number))
                if self._shared.setdefault(key, lease) is not lease:  # another thread or task was faster
                    yield from self.revoke(number)
            elif (yield from self._is_fresh(lease, age)):
                return lease
            else:
                self.lost(lease)

    def own(self, name: str, attempt: str, ttl: int) -> Steps[EtcdLease]:
        """A lease for one attempt; asked for again, the same one."""
        length = whole(ttl)
        number = _own_number(name, attempt, length)
        known = self._all.get(number)
        if known is not None and known.granted and (yield from self._is_fresh(known, 0.0)):
            return known
        return (yield from self._grant(EtcdLease(number, length, attempt=attempt)))

    def for_rest(self, name: str, attempt: str, rest: float) -> Steps[int]:
        """A lease that nobody renews; longer than asked for, if etcd has none so short."""
        number = _number(f"{attempt} rest {name}")
        try:
            yield wire.lease_grant(number, whole(int(rest * SECOND)))
        except GrpcError as error:
            if not error.lease_is_there:
                raise
        return number

    def shortest(self) -> Steps[int]:
        """The shortest lease that this server keeps, in seconds."""
        number = _random()
        answer = wire.read((yield wire.lease_grant(number, 1))[0])
        yield from self.revoke(number)
        return int(wire.first(answer, 3))

    def _grant(self, lease: EtcdLease) -> Steps[EtcdLease]:
        lease.refreshed = clock.now()
        self._all[lease.number] = lease  # already now: the answer may get lost
        if lease.attempt:
            self._own.setdefault(lease.attempt, {})[lease.number] = lease
        try:
            granted = wire.first(wire.read((yield wire.lease_grant(lease.number, lease.length))[0]), 3)
        except GrpcError as error:
            if not error.lease_is_there:
                if not error.unknown:  # there is none, or (the server is full) one that keeps nothing alive
                    self.lost(lease)
                raise
            # The answer to an earlier request was lost. It is unknown since when the lease runs: it starts again now.
            if not (yield from self.keep_alive([lease.number]))[lease.number]:
                return (yield from self._grant(lease))
            granted = wire.first(wire.read((yield wire.lease_time_to_live(lease.number))[0]), 4)
        if granted > lease.length:
            yield from self.revoke(lease.number)
            raise StoreNotReady(
                f"ttl too short: etcd keeps no lease shorter than {granted} s (because of its election timeout), so a "
                f"dead holder would be replaced late: use a ttl above {granted - 1} s"
            )
        lease.granted = True
        return lease

    def _mark(self, lease: EtcdLease) -> Steps[bool]:
        """Write the key whose deletion tells that the lease is gone. False when the lease is gone already."""
        mark = self._base + b"s/%s\0%x%s" % (self._session, lease.number, MARK)
        if (yield from self.write(lease, wire.txn([], [put(mark, b"", lease.number)], []))) is None:
            return False
        lease.marked = True
        return True

    def _is_fresh(self, lease: EtcdLease, age: float) -> Steps[bool]:
        """See that a lease was renewed at most ``age`` seconds ago. False when it is gone."""
        if lease.unsure:
            yield from self._fence(lease)
            if lease.number not in self._all:
                return False
        if clock.now() - lease.refreshed <= age:
            return True
        return (yield from self.keep_alive([lease.number]))[lease.number]

    # Renewing.

    def keep_alive(self, numbers: Collection[int]) -> Steps[dict[int, bool]]:
        """Renew leases, also of other processes. Says which of them are alive."""
        sent = clock.now()
        answers = yield wire.lease_keep_alive(list(numbers))
        alive = dict.fromkeys(numbers, False)
        for answer in answers:
            fields = wire.read(answer)
            number = wire.first(fields, 2)
            alive[number] = wire.first(fields, 3) > 0
            lease = self._all.get(number)
            if lease is not None and alive[number]:
                lease.refreshed = sent
            elif lease is not None:
                self.lost(lease)
        return alive

    def left(self, number: int, old: float = 0.0) -> Steps[float | None]:
        """Seconds that a lease has left, at least; None when it is gone. etcd tells whole ones, rounded down.

        What the server said at most ``old`` seconds ago will do; so will what is known of a lease of our own."""
        now = clock.now()
        if old:
            ours = self._all.get(number)
            if ours is not None:
                return max(ours.refreshed + ours.length - now, _LAST)
            ends, seen = self._seen.get(number, (0.0, -old))
            if now - seen < old:
                return max(ends - now, _LAST)
        left = wire.first(wire.read((yield wire.lease_time_to_live(number))[0]), 3)
        if left < 0:
            return None
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen[number] = (now + left, now)
        return max(float(left), _LAST)

    # Writes of unknown outcome.

    def write(self, lease: EtcdLease, call: EtcdCall) -> Steps[TxnResult | None]:
        """A transaction that attaches a key to the lease; None when the lease is gone."""
        fence = lease.fence
        try:
            answer = yield call
        except BaseException as error:  # also when the driver closes these steps
            if isinstance(error, GrpcError) and error.lease_is_gone:
                self.lost(lease)
                return None
            if not isinstance(error, GrpcError) or error.unknown:
                lease.doubt(fence)
            raise
        return wire.read_txn(answer)

    def settle(self) -> Steps[None]:
        """See to it that no write on a shared lease is still on its way."""
        for lease in list(self._all.values()):
            if lease.unsure:
                yield from self._fence(lease)

    def _fence(self, lease: EtcdLease) -> Steps[None]:
        try:
            result = wire.read_txn((yield wire.txn([], [put(lease.fence_key, b"", lease.number)], [])))
        except GrpcError as error:
            if not error.lease_is_gone:
                raise
            self.lost(lease)
        else:
            lease.fenced(result.revision)

    # The end.

    def lost(self, lease: EtcdLease) -> None:
        """It is gone, and every key with it."""
        self._all.pop(lease.number, None)
        for key in [key for key, each in list(self._shared.items()) if each is lease]:
            del self._shared[key]
        if own := self._own.get(lease.attempt):
            own.pop(lease.number, None)
            if not own:
                self._own.pop(lease.attempt, None)

    def revoke(self, number: int) -> Steps[None]:
        """It is forgotten when the server has answered: until then a write that is on its way may find it."""
        try:
            yield wire.lease_revoke(number)
        except GrpcError as error:
            if not error.lease_is_gone:
                raise
        if (lease := self._all.get(number)) is not None:
            self.lost(lease)

    def own_of(self, attempt: str) -> list[int]:
        """The leases that it has for itself."""
        return list(self._own.get(attempt, ()))

    def revoke_own(self, attempt: str) -> Steps[None]:
        for number in self.own_of(attempt):
            yield from self.revoke(number)

    def may_hold(self, attempt: str) -> bool:
        """Whether a write that is on its way could attach a key to a lease that this attempt has for itself."""
        return any(not lease.settled for lease in list(self._own.get(attempt, {}).values()))

    def revoke_left(self, name: str, attempt: str, number: int) -> Steps[None]:
        """Revoke a lease of another process, if it is one that this attempt had for itself."""
        length = wire.first(wire.read((yield wire.lease_time_to_live(number))[0]), 4)
        if number == _own_number(name, attempt, length):
            yield from self.revoke(number)

    def end(self, but: Collection[str]) -> Steps[None]:
        """Revoke all leases but those of these attempts."""
        for lease in list(self._all.values()):
            if lease.attempt not in but:
                yield from self.revoke(lease.number)


def _random() -> int:
    return int.from_bytes(os.urandom(8), "big") >> 1 or 1


def _own_number(name: str, attempt: str, length: int) -> int:
    return _number(f"{attempt} {length} {name}")


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1 or 1
