"""The entry of a name: its holders, its waiters, and all rules about them. Pure: time is an argument.

A name has a capacity (``limit``), *holders* that each take a weight of it, and one FIFO *queue*. A lock has capacity 1,
a semaphore n; of a read/write lock a reader takes 1 and a writer all. Each permit has an expiry of its own.

All times are microseconds of one clock, the store's. ``wall`` goes into tokens only.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from .protocol import BROKEN, GONE, RENEWED, SECOND, Ask, Busy, Grant, Holding, Mismatch, Missing, Reply
from .timing import FIRST_TERM, STAGGER, WAITER_TTL

_FIRST_TERM = int(FIRST_TERM * SECOND)
_WAITER_TTL = int(WAITER_TTL * SECOND)
_STAGGER = int(STAGGER * SECOND)

# The states of a permit.
WAITING = 0
GRANTED = 1  # by another's release, for a first term; its waiter has not claimed it yet
HELD = 2
INTERRUPTED = 3  # by break_lease: renewal is refused
RESTING = 4  # released, or its holder died, before min_hold was over: nobody holds it until it expires

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Permit:
    """One attempt that waits for a name or holds it. ``rest`` is its ``min_hold``, counted from ``acquired``."""

    __slots__ = (
        "acquired",
        "attempt",
        "data",
        "expires",
        "kind",
        "owner",
        "rest",
        "session",
        "state",
        "token",
        "ttl",
        "weight",
    )

    def __init__(
        self,
        attempt: str,
        owner: str,
        kind: str,
        data: str | None,
        session: str,
        weight: int,
        ttl: int,
        rest: int,
        expires: int = 0,
        token: int = 0,
        acquired: int = 0,
        state: int = WAITING,
    ) -> None:
        self.attempt = attempt
        self.owner = owner
        self.kind = kind
        self.data = data
        self.session = session
        self.weight = weight
        self.ttl = ttl
        self.rest = rest
        self.expires = expires
        self.token = token
        self.acquired = acquired
        self.state = state

    def fields(self) -> list[Any]:
        """What is stored, in the order of the constructor."""
        who = (self.attempt, self.owner, self.kind, self.data, self.session, self.weight, self.ttl, self.rest)
        return [*who, self.expires, self.token, self.acquired, self.state]

    def hold(self, ttl: int, now: int) -> None:
        """Claim or renew. Never shortens: an older request that arrives late must not end a newer, longer term."""
        if now + ttl >= self.expires:
            self.ttl = ttl  # of the term that ends at ``expires``
        self.expires = max(self.expires, now + ttl)
        self.state = HELD

    def seen(self, name: str, now: int, waiters: int) -> Holding:
        age, left = (now - self.acquired) / SECOND, (self.expires - now) / SECOND
        return Holding(name, self.attempt, self.owner, self.kind, self.data, self.token, age, left, waiters)


class Entry:
    """The state of one name. Methods change it; ``rings`` collects the wake-ups to send once the change is stored."""

    __slots__ = ("holders", "limit", "name", "queue", "rings", "shape", "token")

    def __init__(self, name: str, token: int) -> None:
        self.name = name
        self.token = token
        self.shape = "lock"
        self.limit = 1
        self.holders: list[Permit] = []
        self.queue: list[Permit] = []
        self.rings: list[tuple[str, str]] = []

    @classmethod
    def load(cls, name: str, token: int, state: str | Sequence[Any]) -> Entry:
        """The entry that ``dump`` or ``state`` was called on."""
        entry = cls(name, token)
        if state:
            stored: Sequence[Any] = json.loads(state) if isinstance(state, str) else state
            entry.shape, entry.limit, holders, queue = stored
            entry.holders = [Permit(*fields) for fields in holders]
            entry.queue = [Permit(*fields) for fields in queue]
        return entry

    def state(self) -> Sequence[Any]:
        """What is stored; empty when nobody holds and nobody waits."""
        if not self.holders and not self.queue:
            return []
        holders, queue = ([permit.fields() for permit in permits] for permits in (self.holders, self.queue))
        return [self.shape, self.limit, holders, queue]

    def dump(self) -> str:
        """The state as text."""
        state = self.state()
        return _encode(state) if state else ""

    # The operations.

    def acquire(self, ask: Ask, session: str, now: int, wall: int) -> Reply:
        gone = self._expire(now, wall)
        taken_from = gone.seen(self.name, now, len(self.queue)) if gone and gone.attempt != ask.attempt else None
        for holder in self.holders:
            if holder.attempt == ask.attempt and holder.state != INTERRUPTED:
                holder.hold(ask.ttl, now)  # an earlier answer was lost, or it claims what a release granted
                return Grant(holder.token, None, taken_from)
        if ask.heir is not None:
            return self._inherit(ask, ask.heir, session, now, wall)
        if not self.holders and not self.queue:
            self.shape, self.limit = ask.shape, ask.limit
        elif (self.shape, self.limit) != (ask.shape, ask.limit):
            return Mismatch(self.shape, self.limit)
        place = self._place(ask.attempt)
        if place is None:
            mine = Permit(ask.attempt, ask.owner, ask.kind, ask.data, session, ask.weight, ask.ttl, ask.rest)
            if self._free() >= ask.weight and not (self.queue and ask.fair):
                self._grant(mine, now, wall)
                mine.hold(ask.ttl, now)
                return Grant(mine.token, None, taken_from)
            if ask.queue:
                place = len(self.queue)
                mine.expires = now + _WAITER_TTL
                self.queue.append(mine)
        else:
            self._refresh(self.queue[place], now)
        return self._busy(place, now)

    def keep_waiting(self, attempts: Sequence[str], now: int) -> list[Busy | None]:
        """Refresh the places of these waiters. None for one that has to call ``acquire``. Changes nothing else."""
        head = next((waiter for waiter in self.queue if waiter.expires > now), None)
        fits = head is not None and self._free() >= head.weight
        expired = max((now - holder.expires for holder in self.holders), default=-1)
        answers: list[Busy | None] = []
        for attempt in attempts:
            place = self._place(attempt)
            if place is None or self.queue[place].expires <= now:
                answers.append(None)
                continue
            ahead = sum(1 for waiter in self.queue[:place] if waiter.expires > now)
            if (fits and not ahead) or expired >= _STAGGER * ahead:
                answers.append(None)
            else:
                self._refresh(self.queue[place], now)
                answers.append(self._busy(place, now))
        return answers

    def renew(self, attempt: str, token: int, ttl: int, now: int) -> str:
        holder = self._holder(attempt, token)
        if holder is None or holder.expires <= now:
            return GONE
        if holder.state == INTERRUPTED:
            return BROKEN
        holder.hold(ttl, now)
        return RENEWED

    def release(self, attempt: str, token: int, now: int, wall: int) -> bool:
        self._expire(now, wall)
        holder = self._holder(attempt, token)
        if holder is None:
            return False
        self._let_go(holder, holder.acquired + holder.rest if holder.rest else now, now)
        self._promote(now, wall)
        return True

    def abandon(self, attempt: str, now: int, wall: int) -> bool:
        permits = len(self.holders) + len(self.queue)
        # min_hold does not apply: the lease was never used.
        self.holders = [holder for holder in self.holders if holder.attempt != attempt]
        self.queue = [waiter for waiter in self.queue if waiter.attempt != attempt]
        found = len(self.holders) + len(self.queue) < permits
        self._expire(now, wall)
        if found:
            self._promote(now, wall)
            self._ring_head()
        return found

    def interrupt(self, force: bool, now: int, wall: int) -> bool:
        self._expire(now, wall)
        held = [holder for holder in self.holders if holder.state != RESTING or force]
        for holder in held:
            holder.state = INTERRUPTED
            self.rings.append((holder.session, holder.attempt))
        if force and held:
            self.holders.clear()
            self._promote(now, wall)
        return bool(held)

    def bury(self, dead: Collection[str], now: int, wall: int) -> Permit | None:
        """The processes of these sessions have died: remove their permits, except what min_hold keeps.

        Returns the last of them that had been used."""
        buried = [holder for holder in self.holders if holder.session in dead]
        for holder in buried:
            used = holder.state != GRANTED
            self._let_go(
                holder, min(holder.expires, holder.acquired + holder.rest) if used and holder.rest else now, now
            )
        self.queue = [waiter for waiter in self.queue if waiter.session not in dead]
        self._promote(now, wall)
        return _last_used(buried)

    def holds(self, attempt: str, token: int, now: int) -> bool:
        """Whether the attempt holds the name, unbroken."""
        holder = self._holder(attempt, token)
        return holder is not None and holder.expires > now and holder.state != INTERRUPTED

    def seen(self, now: int) -> list[Holding]:
        return [holder.seen(self.name, now, len(self.queue)) for holder in self.holders]

    # The rules.

    def _expire(self, now: int, wall: int) -> Permit | None:
        """Remove what has expired and move the queue up. Returns the last removed holder that had been used."""
        gone = [holder for holder in self.holders if holder.expires <= now]
        if gone:
            self.holders = [holder for holder in self.holders if holder.expires > now]
        if self.queue:
            self.queue = [waiter for waiter in self.queue if waiter.expires > now]
            self._promote(now, wall)
        return _last_used(gone)

    def _promote(self, now: int, wall: int) -> None:
        """Grant to the head of the queue while it fits, and wake the waiter that is at the head after that."""
        moved = False
        while self.queue and self._free() >= self.queue[0].weight:
            waiter = self.queue.pop(0)
            self._grant(waiter, now, wall)
            self.rings.append((waiter.session, waiter.attempt))
            moved = True
        if moved:
            self._ring_head()

    def _grant(self, permit: Permit, now: int, wall: int) -> None:
        self.token = permit.token = max(self.token + 1, wall)
        permit.acquired = now
        permit.expires = now + min(permit.ttl, _FIRST_TERM)
        permit.state = GRANTED
        self.holders.append(permit)

    def _inherit(self, ask: Ask, heir: tuple[str, int], session: str, now: int, wall: int) -> Reply:
        """Put the attempt in the place of the permit that it takes over."""
        old = self._holder(*heir)
        if old is None or old.state == INTERRUPTED or old.weight < ask.weight:
            return Missing()
        rest = max(ask.rest, old.acquired + old.rest - now)
        mine = Permit(ask.attempt, ask.owner, ask.kind, ask.data, session, ask.weight, ask.ttl, rest)
        self.holders.remove(old)
        self._grant(mine, now, wall)
        mine.hold(ask.ttl, now)
        self.rings.append((old.session, old.attempt))
        self._promote(now, wall)  # it may be lighter than it was
        return Grant(mine.token)

    def _let_go(self, holder: Permit, not_before: int, now: int) -> None:
        if not_before > now:
            holder.state, holder.expires = RESTING, not_before
            holder.attempt = holder.session = ""
            self._ring_head()  # the expiry has changed
        else:
            self.holders.remove(holder)

    def _refresh(self, waiter: Permit, now: int) -> None:
        """Keep a waiter's place. Not at each call, so that most calls change nothing."""
        if waiter.expires - now < _WAITER_TTL * 2 // 3:
            waiter.expires = now + _WAITER_TTL

    def _ring_head(self) -> None:
        if self.queue:
            self.rings.append((self.queue[0].session, self.queue[0].attempt))

    def _busy(self, place: int | None, now: int) -> Busy:
        first = min(self.holders, key=lambda holder: holder.expires, default=None)
        return Busy(
            holder=first.seen(self.name, now, len(self.queue)) if first else None,
            place=place,
            expires_in=(first.expires - now) / SECOND if first else None,
            watch=tuple(holder.session for holder in self.holders if holder.session),
        )

    def _free(self) -> int:
        return self.limit - sum(holder.weight for holder in self.holders)

    def _holder(self, attempt: str, token: int) -> Permit | None:
        for holder in self.holders:
            if holder.attempt == attempt and holder.token == token:
                return holder
        return None

    def _place(self, attempt: str) -> int | None:
        for place, waiter in enumerate(self.queue):
            if waiter.attempt == attempt:
                return place
        return None


def _last_used(permits: Sequence[Permit]) -> Permit | None:
    """The last permit that was used. A grant that its waiter never claimed does not count."""
    return next((permit for permit in reversed(permits) if permit.state != GRANTED), None)
