"""Which call may use which connection of a pool, and which is next. Shared by the pools for threads and asyncio.

A pool has a fixed number of slots, each with a connection or the place for one. A slot is idle, or on its way to
a call that waits, or in use; then only that call refers to it. A slot that an interrupted thread has dropped is garbage
collected, which closes its connection and makes room for another. So there is no mutex, and no count to put back.

Calls that ask for leases leave one slot to calls that renew, release and claim them.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from ...core import clock
from ..common.turns import Queue, Turn
from .requests import ASK, GIVE, RENEW

CHECK_AFTER = {RENEW: 0.1, GIVE: 0.1, ASK: 0.5}
"""Seconds after which a waiting thread checks by itself: a thread that was interrupted may have woken nobody."""
RESERVED = 1
"""How many connections calls that ask for leases leave to calls that renew, claim and release them."""
FULL = 1.0
"""For how long no further connection is tried after the server refused one and there were others."""

C = TypeVar("C")


class Slot(Generic[C]):
    __slots__ = ("__weakref__", "_drop", "connection", "since")

    def __init__(self, drop: Callable[[C], object]) -> None:
        self._drop = drop
        self.connection: C | None = None
        self.since = 0.0
        """When it was last used."""

    def __del__(self) -> None:
        if self.connection is not None:
            self._drop(self.connection)


class SlotTurn(Turn, Generic[C]):
    """One operation's: it waits for a slot, and has one while it works."""

    __slots__ = ("box", "rank")

    def __init__(self, rank: int, bell: Any) -> None:
        super().__init__(bell)
        self.rank = rank
        self.box: list[Slot[C]] = []
        """Where others put a slot for it. Taking one out is atomic: one call of C."""


class Lent(NamedTuple, Generic[C]):
    connection: C
    new: bool
    """Whether it has to be checked."""
    slots: Slots[C]
    turn: SlotTurn[C]
    slot: Slot[C]


class Slots(Generic[C]):
    """``drop`` closes a connection that was dropped, without waiting for anything."""

    def __init__(self, size: int, drop: Callable[[C], object]) -> None:
        self._size = size
        self._drop = drop
        self._queues: tuple[Queue[SlotTurn[C]], ...] = Queue(), Queue(), Queue()
        self._alive: deque[weakref.ref[Slot[C]]] = deque()
        self._idle: list[Slot[C]] = []
        """Those with a connection last, and of these the one that was used last."""
        self._most = size
        self._full_until = 0.0

    def join(self, turn: SlotTurn[C]) -> None:
        self._queues[turn.rank].join(turn)

    def slot_for(self, turn: SlotTurn[C]) -> Slot[C] | None:
        """The slot that a turn may use now, which is then its user's alone."""
        turn.works = True  # so others put no second slot into its box while it takes one: a signal may come in between
        try:
            return turn.box.pop()
        except IndexError:
            slot = self._take() if self._queues[turn.rank].has(turn, self._room(turn.rank)) else None
        if slot is None:
            turn.works = False
            self.serve()  # others passed it over meanwhile: this may fill its box, and ring its bell
        return slot

    def over(self, turn: SlotTurn[C], slot: Slot[C] | None) -> None:
        """It has ended, or has given up. The slot is fit for further use."""
        if slot is not None:
            self._put(slot)
        self._queues[turn.rank].leave(turn)
        self._empty(turn)
        self.serve()

    def serve(self) -> None:
        """Give free slots to the calls that have waited longest, so that no newcomer overtakes them."""
        for rank, queue in enumerate(self._queues):
            for turn in queue.waiting(self._room(rank)):
                if turn.box:
                    continue
                slot = self._take()
                if slot is None:
                    return
                turn.box.append(slot)
                turn.bell.ring()
                if turn.works or not queue.has(turn):  # it has taken one by itself, or has ended
                    self._empty(turn)

    def anew(self) -> Slots[C]:
        return Slots(self._size, self._drop)

    def full(self, slot: Slot[C]) -> bool:
        """The server refused a connection because it has too many. Whether there are others of ours to wait for."""
        others = self.others(slot)
        self._put(slot)
        if others:
            self._most, self._full_until = others, clock.now() + FULL
        return others > 0

    def others(self, slot: Slot[C] | None = None) -> int:
        """How many connections there are beside the slot's, also those that are being opened."""
        idle = list(self._idle)
        others = [each for each in self.all() if each is not slot]
        return sum(each.connection is not None or each not in idle for each in others)

    def all(self) -> list[Slot[C]]:
        return [slot for ref in list(self._alive) if (slot := ref()) is not None]

    def idle(self) -> list[Slot[C]]:
        """Take out those that are not in use."""
        found: list[Slot[C]] = []
        while self._idle:
            try:
                found.append(self._idle.pop())
            except IndexError:
                break
        return found

    def waiting(self) -> list[SlotTurn[C]]:
        return [turn for queue in self._queues for turn in queue.waiting(2**31)]

    def _room(self, rank: int) -> int:
        """How many turns of a rank can have a slot at once."""
        most = self._most if clock.now() < self._full_until else self._size
        return max(1, most - RESERVED) if rank == ASK else most

    def _take(self) -> Slot[C] | None:
        """The slot that was used last, else a new one if there may be one more."""
        full = clock.now() < self._full_until
        try:
            slot = self._idle.pop()
        except IndexError:
            if full:
                return None
            slot = Slot(self._drop)
            self._alive.append(weakref.ref(slot, self._alive.remove))
            try:
                self._alive.index(weakref.ref(slot), 0, self._size)
            except ValueError:
                return None
            return slot
        if slot.connection is None and full:
            self._put(slot)
            return None
        return slot

    def _put(self, slot: Slot[C]) -> None:
        if slot.connection is None:
            self._idle.insert(0, slot)
        else:
            self._idle.append(slot)

    def _empty(self, turn: SlotTurn[C]) -> None:
        try:
            while True:
                self._put(turn.box.pop())
        except IndexError:
            pass
