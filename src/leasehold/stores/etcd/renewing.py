"""How what is held is renewed, and moved from one lease of etcd's to another where its term asks for that."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TypeAlias

from ...core import clock
from ...core.protocol import BROKEN, GONE, RENEWED, SECOND, Renewal, Steps
from ...errors import StoreNotReady, StoreUnavailable
from . import wire
from .errors import DRIVER_ERRORS, Refused
from .haste import hasty, urgent
from .permit import INTERRUPTED, read_permit
from .reading import MOST_OPERATIONS
from .sessions import whole
from .several import Several
from .wire import EQUAL, MOD, KeyValue, compare, get, put

MOVES = 8
"""In one renewal: how many are moved that could stay. Each takes two or three calls, and the others wait for these."""
MOVING = 0.1
"""Of the shortest ttl among them: how long moves may take, before those that are left have to try again."""
Outcomes: TypeAlias = list[str | StoreUnavailable]
Places: TypeAlias = list[tuple[int, KeyValue]]
"""In the batch, each with what was read there."""


class Renewing(Several):
    """All that ``renew`` does."""

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreUnavailable]]:
        sent = clock.now()
        terms = {each.attempt: sent + each.ttl / SECOND for each in batch}
        self.sessions.promise(terms)
        try:
            # After the promise, and before the keys are read: of what comes in between, one sees the other.
            moving = {attempt for attempt in terms if self.sessions.may_move(attempt)}
            return (yield from urgent(self._renew(batch, moving, sent)))
        finally:
            self.sessions.withdraw(terms)

    def _renew(self, batch: Sequence[Renewal], moving: Set[str], sent: float) -> Steps[Outcomes]:
        outcomes: Outcomes = [GONE] * len(batch)
        found: list[KeyValue | None] = []
        keys = [self.holders_of(each.name)[0] + each.attempt.encode() for each in batch]
        for start in range(0, len(keys), MOST_OPERATIONS):
            reads = [get(key) for key in keys[start : start + MOST_OPERATIONS]]
            result = wire.read_txn((yield wire.txn([], reads, [])))
            found += [page.found[0] if page.found else None for page in result.pages]
        epoch = yield from self._known_epoch()
        stay: dict[int, list[int]] = {}
        must: Places = []
        may: Places = []
        for at, (each, key) in enumerate(zip(batch, found, strict=True)):
            if each.offered:
                self.sessions.offers(each.attempt)
            if key is None or key.create + epoch != each.token:
                if self.sessions.find(each.name, each.attempt, each.token):
                    self.sessions.forget(each.attempt)
            elif (state := _state(key)) is None:
                outcomes[at] = StoreUnavailable(f"the record of {each.name!r} is damaged, or of another program")
            elif state == INTERRUPTED:
                outcomes[at] = BROKEN
            elif each.attempt in moving or self._cannot_stay(each, key.lease):
                must.append((at, key))
            else:
                stay.setdefault(key.lease, []).append(at)
                if len(may) < MOVES and self._should_leave(each, key.lease):
                    may.append((at, key))
        alive = yield from self.sessions.renew(
            {lease: max(batch[at].ttl for at in places) for lease, places in stay.items()}
        )
        for lease, places in stay.items():
            for at in places:
                if alive.get(lease):
                    outcomes[at] = RENEWED
        for at, outcome in enumerate(outcomes):
            if outcome == RENEWED:
                self.sessions.renewed(batch[at].attempt, sent, batch[at].ttl)
        may = [(at, key) for at, key in may if outcomes[at] == RENEWED]
        yield from self._move_all(batch, must, may, outcomes)
        for at, read in enumerate(found):
            if outcomes[at] == GONE and read is not None and read.create + epoch == batch[at].token:
                looking = self._look_again(batch[at], read)
                outcomes[at] = yield from looking if len(batch) == 1 else self._one_of_many(looking)
        try:
            yield from hasty(self._end_overdue())
        except (StoreNotReady, *DRIVER_ERRORS):
            pass  # again at the next renewal: what was granted here is not to be forgotten over it
        return outcomes

    def _move_all(self, batch: Sequence[Renewal], must: Places, may: Places, outcomes: Outcomes) -> Steps[None]:
        """One after the other, until the time for it is over: the rest, and all that need no move, are not to wait.

        Those that ``may`` move are renewed where they are, so that they can as well be moved the next time."""
        ends = clock.now() + MOVING * min((each.ttl for each in batch), default=0) / SECOND
        for number, (at, key) in enumerate((*must, *may)):
            needed = number < len(must)
            if number and clock.now() >= ends:
                if needed:
                    outcomes[at] = StoreUnavailable(
                        "not renewed yet: it moves to another etcd lease, and others move first"
                    )
                continue
            moving = self._move(batch[at], key)
            outcome = yield from moving if needed and len(batch) == 1 else self._one_of_many(moving)
            if isinstance(outcome, StoreUnavailable) and isinstance(outcome.__cause__, OSError):
                ends = 0.0  # there is no getting through
            if needed or isinstance(outcome, str):
                outcomes[at] = outcome

    def _one_of_many(self, steps: Steps[str | StoreUnavailable]) -> Steps[str | StoreUnavailable]:
        """What one is refused, or hangs over, is not to fail the others, nor to take all the time that they have."""
        try:
            return (yield from hasty(steps))
        except (StoreNotReady, *DRIVER_ERRORS) as error:
            outcome = StoreUnavailable(f"not renewed yet: moving it to another etcd lease failed: {error}")
            outcome.__cause__ = error
            return outcome

    def _cannot_stay(self, renewal: Renewal, number: int) -> bool:
        """Whether a lease is too short for a term; or others share it, and the holder is to outlive us."""
        if renewal.offered and self.sessions.is_shared(number):
            return True
        return whole(renewal.ttl) > self.sessions.length(number)

    def _should_leave(self, renewal: Renewal, number: int) -> bool:
        """Whether a lease is so long that a dead holder would be there for longer than it asks for, and nothing that it
        was granted before stands in the way: else it is let run down.

        One that others share is left at once: they would keep it from running down."""
        if whole(renewal.ttl) >= self.sessions.length(number) or renewal.attempt not in self.sessions.held:
            return False
        over = self.sessions.granted(renewal.attempt) <= clock.now() + renewal.ttl / SECOND
        return over or self.sessions.is_shared(number)

    def _move(self, renewal: Renewal, key: KeyValue) -> Steps[str | StoreUnavailable]:
        """Attach a holder to a lease of its own, long enough for what it asks and for what it was promised before.

        The lease that it leaves runs out, or is revoked when it is released: another may be reading it, or come back to
        it."""
        attempt, since, sent = renewal.attempt, clock.now(), False
        self.sessions.moves(attempt, key.mod)  # before the promises are read: who makes one later sees that it moves
        try:
            left = int((self.sessions.promised(attempt) - since) * SECOND)
            lease = yield from self.sessions.own(renewal.name, attempt, renewal.ttl)  # it may be refused as too short
            if left > renewal.ttl:
                lease = yield from self.sessions.own(renewal.name, attempt, left)
            call = wire.txn([compare(EQUAL, MOD, key.key, key.mod)], [put(key.key, key.value, lease.id)], [])
            sent = True
            succeeded = wire.read_txn((yield call)).succeeded
        except (Refused, StoreNotReady) as error:
            if not (sent and isinstance(error, Refused) and error.unknown):
                self.sessions.refused(attempt, key.mod)
            raise
        self.sessions.answered(attempt, key.mod)
        if succeeded:
            self.sessions.renewed(attempt, since, renewal.ttl, lease.id)
            return RENEWED
        if attempt not in self.sessions.held:  # it was released meanwhile
            yield from self.sessions.revoke_own(attempt)
        return GONE

    def _look_again(self, renewal: Renewal, key: KeyValue) -> Steps[str | StoreUnavailable]:
        """It was ours when it was read, and then it was not as it had been: it is gone, unless another renewal has
        moved it meanwhile, to another lease than the one that was to be kept."""
        holder = yield from self._holder(renewal.name, renewal.attempt)
        if holder is None or holder.mod == key.mod:
            return GONE
        [outcome] = yield from self.renew([renewal])
        return outcome


def _state(key: KeyValue) -> int | None:
    """Of a holder; None when its record cannot be read, which is not to fail the rest of the batch."""
    try:
        return read_permit(key).state
    except StoreNotReady:
        return None
