"""What one ``Locks`` knows of etcd: where its keys are, what it holds and waits for, and how a name is read.

Stored shape, below ``leasehold/<namespace>/``:

- ``h/<name>\\0<attempt>``: a holder. Its create revision is the grant; it goes with the lease that it is attached to.
- ``w/<name>\\0<ticket><attempt>``: a waiter. The ticket is a revision that it has seen, so that keys are in the order
  of arrival, and the first one and the ones ahead are found without reading the others.
- ``s/<session>\\0<attempt>``: a word to a holder, there for a moment: its lease was broken or taken over.
  ``s/<session>\\0<lease>~`` goes with that lease, and so tells its process.
- ``f/<lease>``: see ``leases.py``.
- ``n/<name>``: a note, for ever.
- ``epoch``: what is added to revisions to make tokens; made once from the clock, for a cluster that starts anew.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ...core import clock
from ...core.protocol import Ask, Holding, Mismatch, Steps
from ...errors import StoreNotReady
from . import wire
from .leases import EtcdLeases
from .permit import StoredPermit, read_permit
from .wire import CREATE, EQUAL, KeyPage, KeyValue, TxnResult, compare, get, put

MOST_OPERATIONS = 100
"""In one transaction: etcd takes 128 unless told otherwise."""
NEAR = 3
"""Of so many at the head of a queue each notices when those ahead of it do not take what is there for them."""
_MOST_DIGITS = 18
"""Of an epoch: tokens, which are higher, have to fit into 63 bits."""


class Held(NamedTuple):
    """What this process knows of a holder of its own. Times are of the local clock."""

    name: str
    attempt: str
    token: int
    lease: int
    rest: int
    since: float
    until: float
    """When its term is over, unless it is renewed."""
    granted: float
    """When the grant was answered: not before the grant, from which ``min_hold`` counts."""


class NameView(NamedTuple):
    """What one transaction has shown of a name."""

    revision: int
    holders: list[StoredPermit]
    first: StoredPermit | None
    """In the queue."""
    waiters: int
    ahead: int
    """Before us, when we are in the queue."""
    before: list[bytes]
    """The waiters just ahead of us, NEAR of them at most; the nearest first."""
    queued: bool
    epoch: KeyValue | None

    def free(self, limit: int) -> int:
        return limit - sum(holder.weight for holder in self.holders)

    def shape(self, ask: Ask) -> Mismatch | None:
        """The shape that the name is in use as, if that is another."""
        other = self.holders[0] if self.holders else self.first
        if other is None or (other.shape, other.limit) == (ask.shape, ask.limit):
            return None
        return Mismatch(other.shape, other.limit)

    def fits(self, ask: Ask, over: StoredPermit | None = None) -> bool:
        """Whether the name is there for this ask. ``over``: the first waiter, right ahead of us, does not count."""
        if over is not None:
            turn = self.queued and self.ahead == 1 and self.first == over
        else:
            turn = self.ahead == 0 if self.queued else not self.waiters or not ask.fair
        ours = any(each.attempt == ask.attempt for each in self.holders)
        return turn and not ours and self.shape(ask) is None and self.free(ask.limit) >= ask.weight


class EtcdSession:
    def __init__(self, namespace: str) -> None:
        self.base = b"leasehold/" + namespace.replace("%", "%25").replace("/", "%2F").encode() + b"/"
        self.epoch_key = self.base + b"epoch"
        self.begin()

    def begin(self) -> None:
        """In a forked child: own nothing."""
        self.id = os.urandom(8).hex()
        self.leases = EtcdLeases(self.base, self.id.encode())
        self.held: dict[str, Held] = {}
        self.offered: set[str] = set()
        """Attempts that another process may take over: their leases are not revoked when this ``Locks`` is closed."""
        self.rests: list[tuple[float, int]] = []
        """Leases that the driver is to end, and when: see ``EtcdStore.end_rest``."""
        self.places: dict[str, bytes] = {}
        """Attempts that wait, each with its key."""
        self.behind: set[str] = set()
        """Those of them that had others ahead when they last looked."""
        self.idle: dict[str, tuple[bytes, float]] = {}
        """Names that are there for the first of their queue: who it is, and since when that is known."""
        self._epoch: int | None = None

    # Keys.

    def holders_of(self, name: str) -> tuple[bytes, bytes]:
        """The range of the holders of a name."""
        start = self.base + b"h/" + name.encode()
        return start + b"\0", start + b"\1"

    def holder_key(self, name: str, attempt: str) -> bytes:
        return self.holders_of(name)[0] + attempt.encode()

    def waiters_of(self, name: str) -> tuple[bytes, bytes]:
        start = self.base + b"w/" + name.encode()
        return start + b"\0", start + b"\1"

    def words(self) -> tuple[bytes, bytes]:
        """Where this process is told that a lease of its own is broken or gone."""
        start = self.base + b"s/" + self.id.encode()
        return start + b"\0", start + b"\1"

    def word_to(self, holder: StoredPermit) -> bytes:
        """The key whose appearance wakes the process of a holder."""
        return self.base + b"s/" + holder.session.encode() + b"\0" + holder.attempt.encode()

    # What is held.

    def find(self, name: str, attempt: str, token: int) -> Held | None:
        held = self.held.get(attempt)
        return held if held is not None and (held.name, held.token) == (name, token) else None

    def forget(self, attempt: str) -> None:
        self.held.pop(attempt, None)
        self.offered.discard(attempt)

    def left_queue(self, attempt: str) -> None:
        self.places.pop(attempt, None)
        self.behind.discard(attempt)

    def overdue(self) -> list[Held]:
        """Holders whose term is over, while the lease that they share may be renewed for others."""
        now = clock.now()
        return [held for held in list(self.held.values()) if held.until < now and self.leases.is_shared(held.lease)]

    def tidy(self) -> None:
        long_ago = clock.now() - 3600
        for held in list(self.held.values()):
            if held.until < long_ago:
                self.forget(held.attempt)
        self.leases.tidy()
        self.idle.clear()

    # Reading.

    def range(self, key: bytes, end: bytes = b"", **options: Any) -> Steps[KeyPage]:
        answer = yield wire.EtcdCall(wire.RANGE, (wire.range_of(key, end, **options),))
        return wire.read_page(answer[0])

    def holder(self, name: str, attempt: str) -> Steps[StoredPermit | None]:
        page = yield from self.range(self.holder_key(name, attempt))
        return read_permit(page.found[0]) if page.found else None

    def reads(self, ask: Ask) -> list[bytes]:
        """The operations that show how a name stands, for ``view``."""
        first, last = self.waiters_of(ask.name)
        reads = [get(*self.holders_of(ask.name)), get(first, last, limit=1), get(self.epoch_key)]
        place = self.places.get(ask.attempt)
        if place is not None:
            reads += [get(place, keys_only=True), get(first, place, limit=NEAR, last_first=True, keys_only=True)]
        return reads

    def view(self, ask: Ask, result: TxnResult, pages: list[KeyPage]) -> NameView:
        holders, queue, epoch = pages[:3]
        queued, ahead, before = False, 0, list[bytes]()
        if len(pages) > 3:
            own, others = pages[3:]
            queued, ahead = bool(own.found), others.total
            before = [key.key for key in others.found]
            if not queued:
                self.left_queue(ask.attempt)  # our lease ran out, or we were passed over
            elif ahead:
                self.behind.add(ask.attempt)
            else:
                self.behind.discard(ask.attempt)
        return NameView(
            result.revision,
            [read_permit(key) for key in holders.found],
            read_permit(queue.found[0]) if queue.found else None,
            queue.total,
            ahead,
            before,
            queued,
            self.learn_epoch(epoch),
        )

    def look(self, ask: Ask) -> Steps[NameView]:
        result = wire.read_txn((yield wire.txn([], self.reads(ask), [])))
        return self.view(ask, result, result.pages)

    def seen(self, holders: list[StoredPermit], waiters: dict[str, int], old: float = 0.0) -> Steps[list[Holding]]:
        """Holders as they are listed. What their leases have left may be ``old`` seconds old."""
        epoch = yield from self.known_epoch()
        left: dict[int, float | None] = {}  # one call for all that share a lease
        for lease in dict.fromkeys(holder.lease for holder in holders):
            left[lease] = yield from self.leases.left(lease, old)
        return [
            holder.seen(epoch, seconds, waiters[holder.name])
            for holder in holders
            if (seconds := left[holder.lease]) is not None
        ]

    # The epoch.

    def known_epoch(self) -> Steps[int]:
        while self._epoch is None:
            made = [put(self.epoch_key, b"%d" % clock.wall_us())]
            absent = compare(EQUAL, CREATE, self.epoch_key, 0)
            result = wire.read_txn((yield wire.txn([absent], [*made, get(self.epoch_key)], [get(self.epoch_key)])))
            self.learn_epoch(result.pages[0])
        return self._epoch

    def same_epoch(self, epoch: int) -> bytes:
        return compare(EQUAL, wire.VALUE, self.epoch_key, b"%d" % epoch)

    def learn_epoch(self, page: KeyPage) -> KeyValue | None:
        if not page.found:
            self._epoch = None
            return None
        [key] = page.found
        if not key.value.isdigit() or len(key.value) > _MOST_DIGITS:
            raise StoreNotReady(
                f"{key.key!r} is not a number that leasehold wrote: remove the key; the next acquire creates a new one"
            )
        self._epoch = int(key.value)
        return key
