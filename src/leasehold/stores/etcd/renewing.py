"""How what is held is renewed, and moved to another lease of etcd's where the lease that it is on is too short.

A renewal for less than the lease's length keeps the holder where it is: the term is shorter, the lease is not. One for
more is a conditional write of the key, which attaches it to a lease of its own. So a holder never moves to a shorter
lease. A move whose answer was lost may yet arrive, or another renewal be about to make one: so each renewal keeps alive
not only the lease that the key is on, but all that the attempt has for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ...core import clock
from ...core.protocol import BROKEN, GONE, RENEWED, SECOND, Renewal, Steps, T
from ...errors import StoreNotReady, StoreUnavailable
from . import wire
from .acquiring import Acquiring
from .errors import DRIVER_ERRORS
from .leases import whole
from .permit import INTERRUPTED, read_permit
from .session import MOST_OPERATIONS, EtcdSession
from .wire import EQUAL, MOD, KeyValue, compare, get, marked, put

RenewalOutcome: TypeAlias = str | StoreUnavailable


def urgent(steps: Steps[T]) -> Steps[T]:
    """The same steps, with calls that have a connection of their own."""
    return marked(steps, urgent=True)


class Renewing:
    """The operation ``renew``."""

    def __init__(self, session: EtcdSession, acquiring: Acquiring) -> None:
        self._session = session
        self._acquiring = acquiring

    def renew(self, batch: Sequence[Renewal]) -> Steps[list[RenewalOutcome]]:
        outcomes = yield from urgent(self._renew(batch))
        for each, outcome in zip(batch, outcomes, strict=True):
            held = self._session.held.get(each.attempt)
            if held is not None and outcome == RENEWED:
                until = max(held.until, clock.now() + each.ttl / SECOND)
                self._session.held[each.attempt] = held._replace(until=until)
        try:
            yield from urgent(self._acquiring.end_overdue())
        except (StoreNotReady, *DRIVER_ERRORS):
            pass  # again at the next renewal: what was granted here is not to be forgotten over it
        return outcomes

    def _renew(self, batch: Sequence[Renewal]) -> Steps[list[RenewalOutcome]]:
        session = self._session
        found = yield from self._read(batch)
        epoch = yield from session.known_epoch()
        outcomes: list[RenewalOutcome] = [GONE] * len(batch)
        stay: list[tuple[int, KeyValue]] = []
        moves: list[tuple[int, KeyValue]] = []
        terms: dict[int, int] = {}
        for at, (each, key) in enumerate(zip(batch, found, strict=True)):
            if each.offered:
                session.offered.add(each.attempt)
            if key is None or key.create + epoch != each.token:
                if session.find(each.name, each.attempt, each.token):
                    session.forget(each.attempt)
            elif (state := _state(key)) is None:
                outcomes[at] = StoreUnavailable(f"the record of {each.name!r} is damaged, or of another program")
            elif state == INTERRUPTED:
                outcomes[at] = BROKEN
            elif not self._can_stay(each, key.lease):
                moves.append((at, key))
            else:
                stay.append((at, key))
                for number in (key.lease, *session.leases.own_of(each.attempt)):
                    terms[number] = max(each.ttl, terms.get(number, 0))
        alive = yield from self._keep_alive(terms)
        for at, key in stay:
            again = self._look_again(batch[at], key)
            outcomes[at] = RENEWED if alive[key.lease] else (yield from self._one(batch, again))
        for at, key in moves:
            outcomes[at] = yield from self._one(batch, self._move(batch[at], key))
        return outcomes

    def _read(self, batch: Sequence[Renewal]) -> Steps[list[KeyValue | None]]:
        reads = [get(self._session.holder_key(each.name, each.attempt)) for each in batch]
        found: list[KeyValue | None] = []
        for start in range(0, len(reads), MOST_OPERATIONS):
            result = wire.read_txn((yield wire.txn([], reads[start : start + MOST_OPERATIONS], [])))
            found += [page.found[0] if page.found else None for page in result.pages]
        return found

    def _can_stay(self, renewal: Renewal, number: int) -> bool:
        """Not if the lease is too short for the term, or unknown; or others share it, and the holder is to outlive this
        process."""
        lease = self._session.leases.get(number)
        return lease is not None and whole(renewal.ttl) <= lease.length and not (renewal.offered and lease.shared)

    def _keep_alive(self, terms: dict[int, int]) -> Steps[dict[int, bool]]:
        """Which of the leases live for so many more microseconds. A lease that does so anyway is not renewed: whoever
        only asks must not get more."""
        leases = self._session.leases
        lasting = [number for number, ttl in terms.items() if (lease := leases.get(number)) and lease.lasts(ttl)]
        due = [number for number in terms if number not in lasting]
        renewed = (yield from leases.keep_alive(due)) if due else {}
        return {**dict.fromkeys(lasting, True), **renewed}

    def _one(self, batch: Sequence[Renewal], steps: Steps[RenewalOutcome]) -> Steps[RenewalOutcome]:
        """A move. Where others are renewed beside it, its error is its own."""
        if len(batch) == 1:
            return (yield from steps)
        try:
            return (yield from steps)
        except (StoreNotReady, *DRIVER_ERRORS) as error:
            outcome = StoreUnavailable(f"not renewed yet: moving it to another etcd lease failed: {error}")
            outcome.__cause__ = error
            return outcome

    def _move(self, renewal: Renewal, key: KeyValue) -> Steps[RenewalOutcome]:
        """Attach a holder to a lease of its own. The lease that it leaves is renewed no more for it."""
        session, attempt = self._session, renewal.attempt
        old = session.leases.get(key.lease)
        least = 0 if old is None else old.length * SECOND  # another renewal may just be granted that much
        lease = yield from session.leases.own(renewal.name, attempt, max(renewal.ttl, least))
        call = wire.txn([compare(EQUAL, MOD, key.key, key.mod)], [put(key.key, key.value, lease.number)], [])
        if not wire.read_txn((yield call)).succeeded:
            return (yield from self._look_again(renewal, key))
        held = session.held.get(attempt)
        if held is not None:
            session.held[attempt] = held._replace(lease=lease.number)
        return RENEWED

    def _look_again(self, renewal: Renewal, key: KeyValue) -> Steps[RenewalOutcome]:
        """It was ours when it was read, and then it was not as it had been: it is gone, unless another renewal has
        moved it meanwhile to another lease."""
        [now] = yield from self._read([renewal])
        if now is None or now.mod == key.mod or now.create != key.create:
            return GONE
        [outcome] = yield from self._renew([renewal])
        return outcome


def _state(key: KeyValue) -> int | None:
    """Of a holder; None when its record cannot be read, which is not to fail the rest of the batch."""
    try:
        return read_permit(key).state
    except StoreNotReady:
        return None
