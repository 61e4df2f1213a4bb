"""Places in queues. While their waiters sleep, the keeper refreshes them in batches and puts off their next check.

A store says by ``keeps_places`` that it needs that. In other stores each waiter calls ``acquire`` at its next check.
"""

from __future__ import annotations

from . import timing
from .effects import Effects, Run
from .log import DEBUG, log
from .protocol import Ask, Bell, Busy
from .registry import Registry, ring
from .state import NEVER

MOST_PLACES = 100
"""Waiters in one store operation. A server may serve nobody else meanwhile."""
KEEP_LIMIT = 0.4
"""How long the operation may take: a lease that is granted meanwhile, for a first term, needs its renewal in time."""
LEAST = 0.05
"""The shortest time between two checks of a waiter that the keeper makes, whatever the store answers."""
LATE = 1.0
"""How much later than the keeper a waiter checks by itself."""
LATE_AT_EXPIRY = 0.1
"""The same for the next waiter when the holder may have expired. It has 250 ms to take over."""


class Place:
    """One waiter that sleeps: the last answer about it, and when its next check is due. Times are local.

    ``due``: when the keeper checks. ``until``: when the waiter itself does: then, too, if the keeper does not keep the
    place; else a little later. So a keeper that is stuck delays a waiter by ``LATE`` at most."""

    __slots__ = (
        "_check",
        "_clock",
        "_expiry",
        "_next",
        "answer",
        "ask",
        "bell",
        "due",
        "kept",
        "longest",
        "pause",
        "until",
    )

    def __init__(
        self, ask: Ask, bell: Bell, busy: Busy, sent: float, now: float, pause: float, longest: float, kept: bool
    ) -> None:
        """``busy`` was answered to a call that was sent at ``sent``. ``pause``: how long to sleep until the next check;
        it grows to ``longest`` from check to check."""
        self.ask = ask
        self.bell = bell
        self.pause = pause
        self.longest = longest
        self.kept = kept
        self._clock: int | None = None
        self._expiry = NEVER
        self._next = False
        self.due = self.until = now
        self.refreshed(busy, sent, now)

    def refreshed(self, busy: Busy, sent: float, now: float) -> None:
        """The store has refreshed the place, and answered this."""
        self.answer = busy, sent
        self._check = now + (self.pause if busy.look is None else min(self.pause, busy.look))
        self.learn(busy, now)
        self.due = max(self.due, now + LEAST)
        self.pause = min(self.longest, self.pause * 1.5)

    @property
    def may_take_over(self) -> bool:
        """Whether its next check is due because the holder may have expired, and this is the next waiter."""
        return self._next and self._expiry <= self._check

    def learn(self, busy: Busy, now: float) -> None:
        """Note who holds the name now, unless what is known is newer. The place itself was not refreshed.

        Once the known expiry has passed any answer counts: the store's clock may have been set back."""
        older = busy.now is not None and self._clock is not None and busy.now < self._clock
        if not older or self._expiry <= now:
            self._clock, self._expiry, self._next = busy.now, _expires_at(busy, now), not busy.place
        due = min(self._check, self._expiry)
        if not self.kept:
            late = 0.0
        elif self.may_take_over:
            late = LATE_AT_EXPIRY
        else:
            late = min(LATE, self.pause / 2)
        self.until = due + late
        self.due = due if self.kept else NEVER


def _expires_at(busy: Busy, now: float) -> float:
    """When the first holder may have expired, by an answer that has just come; later for waiters further back."""
    if busy.expires_in is None:
        return NEVER
    return now + max(0.001, busy.expires_in + timing.STAGGER * (busy.place or 0))


def next_check(core: Registry) -> float:
    """When the keeper has to check the next place."""
    return min((place.due for place in _sleeping(core)), default=NEVER)


def keep_places(core: Registry) -> Effects[None]:
    """Check the places that are due, and those that are due soon. Stops when a renewal is due: renewals go first."""
    now = core.now()
    if next_check(core) > now:
        return
    soon = sorted((place for place in _sleeping(core) if place.due <= now + place.pause / 5), key=lambda each: each.due)
    for start in range(0, len(soon), MOST_PLACES):
        left = min((state.due for state in core.held()), default=NEVER) - core.now()
        if left <= 0 or core.urgent or core.closed is not None:
            return
        batch = [place for place in soon[start : start + MOST_PLACES] if place.bell.place is place]  # and still sleep
        if batch:
            yield from _check(core, batch, max(0.1, min(KEEP_LIMIT, core.cadence, left)))


def _check(core: Registry, places: list[Place], limit: float) -> Effects[None]:
    sent = core.now()
    for place in places:
        place.due = NEVER  # if the store does not answer, the waiter checks by itself
    try:
        answers = yield Run(core.store.keep_waiting([place.ask for place in places]), limit)
    except Exception as error:
        log(DEBUG, "cannot refresh %d places in queues; their waiters check by themselves: %s", len(places), error)
        for number, place in enumerate(places):
            if not place.may_take_over:
                place.until += LATE * number / len(places)  # not all at once: the store may just be slow
        return
    now = core.now()
    for place, busy in zip(places, answers, strict=True):
        if busy is None:
            ring(place.bell)
        else:
            place.refreshed(busy, sent, now)


def _sleeping(core: Registry) -> list[Place]:
    """The places of the waiters that sleep now. A copy: other threads begin and end waits meanwhile."""
    return [place for bell in list(core.asking.values()) if (place := bell.place) is not None]
