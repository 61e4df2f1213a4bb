"""Who may use which connection of a pool, and who is next. Shared by the pools for threads and for asyncio.

A pool has a fixed number of slots. A slot is in use for as long as the turn that has it *lives*, which is not written
down anywhere: the thread (or task) that runs the operation holds a lock of its turn by ``with``. An operation that is
interrupted at any point thus gives up its slot. The connection that it has left there is not clean: whoever has the
slot next closes it, and opens another. There is no counter that somebody has to put back.

Turns are served by rank, and within a rank in order of arrival; those who ask for leases leave one slot to the others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

from ... import clock
from .store import Accept, Extend, Free, ReadOurs, Unlocked

RENEW, GIVE, ASK = 0, 1, 2
"""Ranks: what keeps leases; what claims and releases them; whatever asks for more, or only wants to know."""
LOOK = {RENEW: 0.1, GIVE: 0.1, ASK: 0.5}
"""Seconds after which a waiting thread looks for itself: one that was interrupted may have woken nobody."""
FULL = 1.0
"""For how long no further connection is tried after one was refused while there were others."""

C = TypeVar("C")


def rank(request: Any) -> int:
    """By what an operation asks for first."""
    if isinstance(request, (Extend, Unlocked)):
        return RENEW
    return GIVE if isinstance(request, (Accept, Free, ReadOurs)) else ASK


class Turn:
    """One operation's. It lives while its thread or task is within ``with turn.life``."""

    __slots__ = ("life", "rank", "wake")

    def __init__(self, rank: int = ASK) -> None:
        self.rank = rank
        self.life = threading.Lock()
        self.wake: Callable[[], object] = lambda: None

    def lives(self) -> bool:
        return self.life.locked()


def standing() -> Turn:
    """A turn that lives until its connection is given back: for who has one beyond an operation."""
    turn = Turn()
    turn.life.acquire()
    return turn


class Slot(Generic[C]):
    __slots__ = ("clean", "connection", "since", "turn")

    def __init__(self) -> None:
        self.turn: Turn | None = None
        self.connection: C | None = None
        self.clean = False
        """Whether the connection is between two statements, as far as is known."""
        self.since = 0.0
        """When it was last used."""

    def in_use(self) -> bool:
        return self.turn is not None and self.turn.lives()


class Turns(Generic[C]):
    """Used under a mutex of the pool's."""

    def __init__(self, size: int) -> None:
        self.slots: list[Slot[C]] = [Slot() for _ in range(size)]
        self._queues: tuple[deque[Turn], ...] = deque(), deque(), deque()
        self._most = size
        self._full_until = 0.0

    def join(self, turn: Turn, first: bool = False) -> None:
        queue = self._queues[turn.rank]
        if first:
            queue.appendleft(turn)
        else:
            queue.append(turn)
        self.serve()

    def slot_of(self, turn: Turn) -> Slot[C] | None:
        return next((slot for slot in self.slots if slot.turn is turn), None)

    def slot_with(self, connection: C) -> Slot[C] | None:
        return next((slot for slot in self.slots if slot.connection is connection), None)

    def leave(self, turn: Turn) -> None:
        """It is over, whether it had a slot or still waited for one."""
        with suppress(ValueError):
            self._queues[turn.rank].remove(turn)
        slot = self.slot_of(turn)
        if slot is not None:
            slot.turn = None
        self.serve()

    def serve(self) -> None:
        """Give slots to those who wait, until there is nobody or nothing left."""
        for queue in self._queues:
            while queue:
                turn = queue[0]
                if turn.lives() and self.slot_of(turn) is None:
                    slot = self._free(turn.rank)
                    if slot is None:
                        return
                    slot.turn = turn
                with suppress(ValueError):
                    queue.remove(turn)
                turn.wake()

    def _free(self, rank: int) -> Slot[C] | None:
        """The slot that a turn of this rank may have now: with a connection if there is one, the last that was used."""
        used = [slot for slot in self.slots if slot.in_use()]
        there = sum(slot.connection is not None or slot in used for slot in self.slots)
        most = self._most if clock.now() < self._full_until else len(self.slots)
        asking = sum(slot.turn is not None and slot.turn.rank == ASK for slot in used)
        if len(used) >= most or (rank == ASK and asking >= max(1, most - 1)):
            return None
        free = [slot for slot in self.slots if slot not in used and (slot.connection is not None or there < most)]
        return max(free, key=lambda slot: (slot.connection is not None and slot.clean, slot.since), default=None)

    def full(self, turn: Turn) -> bool:
        """The server has refused this turn a connection. Whether it can wait for one of the others, and now does."""
        slot = self.slot_of(turn)
        others = sum(each is not slot and (each.connection is not None or each.in_use()) for each in self.slots)
        if not others:
            return False
        self._most, self._full_until = others, clock.now() + FULL
        if slot is not None:
            slot.turn = None
        self.join(turn, first=True)
        return True

    def idle(self) -> Iterator[Slot[C]]:
        return (slot for slot in self.slots if slot.connection is not None and not slot.in_use())

    def waiting(self) -> list[Turn]:
        return [turn for queue in self._queues for turn in list(queue)]
