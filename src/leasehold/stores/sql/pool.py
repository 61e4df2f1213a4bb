"""The pool of one driver: at most so many connections, each lent for one operation, and never while anybody waits for a
lease.

Written once for threads and asyncio: a generator yields what takes time (:class:`Fetch`, :class:`PutBack`,
:class:`Wait`), and the drivers do it. Who may have which slot is in :mod:`.slots`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from ...core import clock
from ...core.protocol import Steps
from ...errors import StoreUnavailable
from .requests import Full
from .slots import CHECK_AFTER, Lent, Slot, Slots, SlotTurn

TRUSTED = 1.0
"""For how many seconds after its last use a connection is lent without a look at its socket."""

C = TypeVar("C")


class Fetch(NamedTuple):
    """Open a connection, or borrow one from the user's pool. Answered with it, and with whether it is to be checked."""

    limit: float


class PutBack(NamedTuple):
    """Return a connection to the user's pool, or close it: always, if it is our own or no ``good``."""

    connection: Any
    good: bool


class Wait(NamedTuple):
    """Wait for a turn. Answered with whether the bell has rung."""

    bell: Any
    seconds: float


class PoolTimeout(StoreUnavailable):
    """Other calls of this process had all connections of the pool for as long as this call could wait."""

    def __init__(self, connections: int, answered: float, limit: float, full: Full | None) -> None:
        why = f"; the server refuses another connection: {full}" if full else ""
        super().__init__(f"timed out after {limit:.3g} s waiting for one of {connections} connections{why}")
        self.queued = clock.now() - answered < limit


class Pool(Generic[C]):
    def __init__(self, size: int, drop: Callable[[C], object], *, keeps: bool, checks: bool) -> None:
        """``drop`` closes a connection that nobody refers to any more, without waiting. ``keeps``: whether connections
        stay here between two calls. ``checks``: whether a waiting call checks by itself now and then."""
        self._slots: Slots[C] = Slots(size, drop)
        self._keeps = keeps
        self._checks = checks
        self._inherited: list[Slot[C]] = []
        self._closed = False
        self._answered = 0.0

    def anew(self, *, kept: bool) -> list[Slot[C]]:
        """Begin anew, in a forked child or a new loop. Returns the slots so far. ``kept``: nobody may close theirs."""
        slots = self._slots.all()
        if kept:
            self._inherited += slots
        self._slots = self._slots.anew()
        self._closed = False
        self._answered = 0.0
        return slots

    def take(self, limit: float, urgency: int, bell: Any) -> Steps[Lent[C]]:
        """Raises Broken, StoreError."""
        slots, ends = self._slots, clock.now() + limit
        turn: SlotTurn[C] = SlotTurn(urgency, bell)
        slot: Slot[C] | None = None
        refused: Full | None = None
        late = False
        try:
            slots.join(turn)
            while not self._closed:
                slot = slots.slot_for(turn)
                if slot is not None:
                    turn.works = True
                    try:
                        new = yield from self._ready(slot, ends)
                        assert slot.connection is not None
                        return Lent(slot.connection, new, slots, turn, slot)
                    except Full as error:
                        full, slot, refused, turn.works = slot, None, error, False
                        if not slots.full(full):
                            raise
                left = ends - clock.now()
                if late or left <= 0:
                    raise PoolTimeout(slots.others(), self._answered, limit, refused) from refused
                seconds = min(left, CHECK_AFTER[urgency]) if self._checks or refused else left
                late = not (yield Wait(bell, seconds)) and seconds == left
            raise StoreUnavailable("this Locks is closed")
        except GeneratorExit:
            slot = None  # it is collected, and its connection dropped: there is nobody to close it
            slots.over(turn, None)
            raise
        except BaseException:
            try:
                if slot is not None:
                    yield from self._leave(slot)
            finally:
                slots.over(turn, slot)
            raise

    def _ready(self, slot: Slot[C], ends: float) -> Steps[bool]:
        """See that the slot has a connection. Returns whether that has to be checked."""
        connection: Any = slot.connection
        if connection is not None:
            if clock.now() - slot.since < TRUSTED or not connection.stale():
                return False
            yield from self._leave(slot)
        new: bool
        slot.connection, new = yield Fetch(max(0.1, ends - clock.now()))
        return new

    def give(self, lent: Lent[C], good: bool) -> Steps[None]:
        slot = lent.slot
        if lent.slots is not self._slots:  # the parent's, or of a loop that is gone
            return
        try:
            if good:
                self._answered = slot.since = clock.now()
            if not (good and self._keeps):
                yield from self._leave(slot, good)
        finally:
            lent.slots.over(lent.turn, slot)
        if self._closed:
            yield from self._close_idle()

    def close(self) -> Steps[None]:
        self._closed = True
        for turn in self._slots.waiting():
            turn.bell.ring()
        yield from self._close_idle()

    def _close_idle(self) -> Steps[None]:
        for slot in self._slots.idle():
            yield from self._leave(slot)

    def _leave(self, slot: Slot[C], good: bool = False) -> Steps[None]:
        """The connection leaves its slot."""
        connection, slot.connection = slot.connection, None
        if connection is not None:
            yield PutBack(connection, good)
