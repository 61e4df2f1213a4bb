"""Where things are in etcd, and how they are read.

Stored shape, below ``leasehold/<namespace>/``:

- ``h/<name>\\0<attempt>``: a holder. Its create revision is the grant; it goes with the lease that it is attached to.
- ``w/<name>\\0<ticket><attempt>``: a waiter. The ticket is a revision that it has seen, so that keys are in the order
  of arrival, and the first one and the one ahead are found without reading the others.
- ``s/<session>\\0<attempt>``: a word to a holder, there for a moment: it is broken. ``s/<session>\\0<lease>~`` goes
  with that lease, and so tells its process.
- ``f/<lease>``: see ``sessions.py``.
- ``n/<name>``: a note, for ever.
- ``epoch``: what is added to revisions to make tokens; made once from the clock, for a cluster that starts anew.

etcd has no clock to read. That a key is there is the truth about a lease, and every grant is a transaction that is
conditional on what was read: no holder since then, nobody ahead, one's own place still there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...core import clock
from ...core.log import WARNING, log
from ...core.protocol import Ask, Holding, Mismatch, Steps
from ...errors import StoreNotReady
from . import wire
from .permit import VERSION, Permit, read_permit
from .sessions import Sessions
from .wire import CREATE, EQUAL, KeyValue, Page, Result, compare, get, put

MOST_OPERATIONS = 100
"""In one transaction: etcd takes 128 unless told otherwise."""

_MOST_DIGITS = 18
"""Of an epoch: tokens, which are higher, have to fit into 63 bits."""

NEAR = 3
"""Of so many at the head of a queue each notices when those ahead of it do not take what is there for them."""


class View(NamedTuple):
    """What one transaction has shown of a name."""

    revision: int
    holders: list[Permit]
    first: Permit | None
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


class Reading:
    """The keys, views and listings that all operations need."""

    def __init__(self, namespace: str) -> None:
        self.scheme = "etcd"
        self.base = b"leasehold/" + namespace.replace("%", "%25").replace("/", "%2F").encode() + b"/"
        self._epoch_key = self.base + b"epoch"
        self.reset()

    def reset(self) -> None:
        """In a forked child: own nothing."""
        self.session = os.urandom(8).hex().encode()
        self.sessions = Sessions(self.base, self.session)
        self._epoch: int | None = None
        self._places: dict[str, bytes] = {}
        """Attempts that wait, each with its key."""
        self._behind: set[str] = set()
        """Those of them that had others ahead when they last looked."""
        self._idle: dict[str, tuple[bytes, float]] = {}
        """Names that are there for the first of their queue, who it is, and since when we know."""

    def holders_of(self, name: str) -> tuple[bytes, bytes]:
        """The range of the holders of a name."""
        start = self.base + b"h/" + name.encode()
        return start + b"\0", start + b"\1"

    def waiters_of(self, name: str) -> tuple[bytes, bytes]:
        start = self.base + b"w/" + name.encode()
        return start + b"\0", start + b"\1"

    def words(self) -> tuple[bytes, bytes]:
        """Where we are told that something of ours is broken."""
        start = self.base + b"s/" + self.session
        return start + b"\0", start + b"\1"

    def _note_key(self, name: str) -> bytes:
        return self.base + b"n/" + name.encode()

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        """What is not a record of ours is passed over: it is about one name, and does not hide the others."""
        start = self.base + b"h/"
        past = start + after.encode(errors="surrogateescape") + b"\1" if after else b""
        page = yield from self._range(max(start + prefix.encode(), past), _after(start + prefix.encode()), limit=count)
        found, upto = page.found, None
        if page.more:
            names = [key.key[len(start) :].partition(b"\0")[0] for key in found]
            upto = names[-1]
            if names[0] == upto:  # one name fills the page
                found = (yield from self._range(start + upto, start + upto + b"\1")).found
            else:
                found = [key for key, name in zip(found, names, strict=True) if name != upto]
                upto = next(name for name in reversed(names) if name != upto)
        holders = [permit for key in found if (permit := _read_or_skip(key)) is not None]
        return (yield from self._listed(holders)), None if upto is None else upto.decode(errors="surrogateescape")

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        page = yield from self._range(*self.holders_of(name))
        return (yield from self._listed([read_permit(key) for key in page.found]))

    def read_note(self, name: str) -> Steps[str | None]:
        page = yield from self._range(self._note_key(name))
        if not page.found:
            return None
        version, _, text = page.found[0].value.partition(b" ")
        if version != b"%d" % VERSION:
            raise StoreNotReady(f"the note of {name!r} was written by a newer leasehold: upgrade leasehold")
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise StoreNotReady(f"the note of {name!r} is not text: remove {page.found[0].key!r}") from error

    def _reads(self, ask: Ask) -> list[bytes]:
        """The operations that show how a name stands, for ``_view``."""
        first, last = self.waiters_of(ask.name)
        reads = [get(*self.holders_of(ask.name)), get(first, last, limit=1), get(self._epoch_key)]
        place = self._places.get(ask.attempt)
        if place is not None:
            reads += [get(place, keys_only=True), get(first, place, limit=NEAR, last_first=True, keys_only=True)]
        return reads

    def _view(self, ask: Ask, result: Result, pages: list[Page]) -> View:
        holders, queue, epoch = pages[:3]
        queued, ahead, before = False, 0, list[bytes]()
        if len(pages) > 3:
            own, others = pages[3:]
            queued, ahead = bool(own.found), others.total
            before = [key.key for key in others.found]
            if not queued:
                self._left(ask.attempt)  # our lease ran out, or we were passed over
            elif ahead:
                self._behind.add(ask.attempt)
            else:
                self._behind.discard(ask.attempt)
        return View(
            result.revision,
            [read_permit(key) for key in holders.found],
            read_permit(queue.found[0]) if queue.found else None,
            queue.total,
            ahead,
            before,
            queued,
            self._learn_epoch(epoch),
        )

    def _look(self, ask: Ask) -> Steps[View]:
        result = wire.read_txn((yield wire.txn([], self._reads(ask), [])))
        return self._view(ask, result, result.pages)

    def _range(self, key: bytes, end: bytes = b"", **options: Any) -> Steps[Page]:
        answer = yield wire.Call(wire.RANGE, (wire.range_of(key, end, **options),))
        return wire.read_page(answer[0])

    def _holder(self, name: str, attempt: str) -> Steps[Permit | None]:
        key = yield from self._holder_key(name, attempt)
        return None if key is None else read_permit(key)

    def _holder_key(self, name: str, attempt: str) -> Steps[KeyValue | None]:
        page = yield from self._range(self.holders_of(name)[0] + attempt.encode())
        return page.found[0] if page.found else None

    def _find_place(self, name: str, attempt: str) -> Steps[bytes]:
        """The key of a waiter whose place we do not know."""
        page = yield from self._range(*self.waiters_of(name), keys_only=True)
        return next((key.key for key in page.found if key.key.endswith(attempt.encode())), b"")

    def _listed(self, holders: list[Permit]) -> Steps[list[Holding]]:
        names = list(dict.fromkeys(holder.name for holder in holders))
        waiters: dict[str, int] = {}
        for start in range(0, len(names), MOST_OPERATIONS):
            some = names[start : start + MOST_OPERATIONS]
            counts = [get(*self.waiters_of(name), count_only=True) for name in some]
            result = wire.read_txn((yield wire.txn([], counts, [])))
            waiters.update(zip(some, (page.total for page in result.pages), strict=True))
        return (yield from self._seen(holders, waiters))

    def _in_the_way(self, view: View, name: str) -> Steps[Holding | None]:
        """For whoever gives up waiting: who holds it, and for how long, as was known within the last second. With many
        hand-overs a second nobody is asked that for each."""
        seen = yield from self._seen(view.holders[:1], {name: view.waiters}, old=1.0)
        return seen[0] if seen else None

    def _seen(self, holders: list[Permit], waiters: Mapping[str, int], old: float = 0.0) -> Steps[list[Holding]]:
        epoch = yield from self._known_epoch()
        left: dict[int, float | None] = {}  # one call for all that share a lease
        for lease in dict.fromkeys(holder.lease for holder in holders):
            left[lease] = yield from self.sessions.left(lease, old)
        return [
            holder.seen(epoch, seconds, waiters[holder.name])
            for holder in holders
            if (seconds := left[holder.lease]) is not None
        ]

    def _left(self, attempt: str) -> None:
        """It is not in the queue any more."""
        self._places.pop(attempt, None)
        self._behind.discard(attempt)

    def _known_epoch(self) -> Steps[int]:
        while self._epoch is None:
            made = [put(self._epoch_key, b"%d" % clock.wall_us())]
            absent = compare(EQUAL, CREATE, self._epoch_key, 0)
            result = wire.read_txn((yield wire.txn([absent], [*made, get(self._epoch_key)], [get(self._epoch_key)])))
            self._learn_epoch(result.pages[0])
        return self._epoch

    def _learn_epoch(self, page: Page) -> KeyValue | None:
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


def _read_or_skip(key: KeyValue) -> Permit | None:
    try:
        return read_permit(key)
    except StoreNotReady as error:
        log(WARNING, "left out of the listing: %s", error)
        return None


def _after(prefix: bytes) -> bytes:
    """The end of the range of keys that start with the prefix."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))  # never 0xff: no UTF-8 text has that
