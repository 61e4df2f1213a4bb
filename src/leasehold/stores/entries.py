"""The store logic for anything that can read a record and compare-and-swap it. Memory and SQLite use it.

An operation reads the row of a name, runs :mod:`leasehold.entry` on it, and swaps the row if its version is still the
one read; else it starts over. A swap that fails means that another's succeeded, so somebody always gets on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..entry import Entry
from ..errors import StoreUnavailable
from ..protocol import GONE, Ask, Busy, Grant, Holding, Mismatch, Refusal, Renewal, Reply, Steps, T, Together
from ..typed import Any, NamedTuple

TIDY_BATCHES = 20


class Row(NamedTuple):
    """A record as read, with the store's clock at that moment. ``version`` is 0 when there is no record."""

    name: str
    version: int
    token: int
    state: Any
    """As :meth:`leasehold.entry.Entry.load` takes it."""
    now: int
    wall: int
    session: str
    """The address of whoever reads: where to ring it."""


# Requests that an entries driver answers.


class Read(NamedTuple):
    """Answered with a Row."""

    name: str


class Swap(NamedTuple):
    """Store token and state if the row's version is still ``row.version``. Answered with the new version, or 0."""

    name: str
    version: int
    token: int
    state: str


class SwapAll(NamedTuple):
    """All of these swaps or none, in one step. Answered with the new versions, or nothing."""

    swaps: Sequence[Swap]


class Ring(NamedTuple):
    """Wake an attempt of a session. Answered with False only when that session is known to be dead."""

    session: str
    attempt: str


class Alive(NamedTuple):
    """Answered with False only when the session is known to be dead."""

    session: str


class Page(NamedTuple):
    """Answered with rows of names that start with ``prefix``, after ``after``, in order, ``most`` of them."""

    prefix: str
    after: str
    most: int


class ReadNote(NamedTuple):
    """Answered with the text beside the name, or None."""

    name: str


class WriteNote(NamedTuple):
    """Keep the text beside the name if the row's version is still this one, and raise that. Answered with whether."""

    name: str
    version: int
    text: str | None


class Tidy(NamedTuple):
    """Remove some records that have long been free. Answered with whether there are more."""


class EntryStore:
    """See :class:`leasehold.protocol.Store`, which says what each operation means."""

    fair = True
    lacks: Mapping[str, str] = {}

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    def acquire(self, ask: Ask) -> Steps[Reply]:
        while True:
            row, entry, reply = yield from self._asked(ask)
            version = yield from self._store(row, entry)
            if version:
                return _with_hint(reply, entry, version) if isinstance(reply, Grant) else reply

    def _asked(self, ask: Ask) -> Steps[tuple[Row, Entry, Reply]]:
        """What an ask comes to, as the row stands: nothing is stored yet."""
        dead: set[str] = set()
        while True:
            row: Row = yield Read(ask.name)
            entry = _entry(row)
            buried = entry.bury(dead, row.now, row.wall) if dead else None
            reply = entry.acquire(ask, row.session, row.now, row.wall)
            if isinstance(reply, Busy):
                newly = yield from self._dead(reply.watch)
                if newly - dead:
                    dead |= newly
                    continue
            if isinstance(reply, Grant) and buried:
                reply = reply._replace(taken_from=buried.seen(ask.name, row.now, 0))
            return row, entry, reply

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreUnavailable]]:
        outcomes: list[str | StoreUnavailable] = []
        for each in batch:

            def change(entry: Entry, row: Row, each: Renewal = each) -> str:
                return entry.renew(each.attempt, each.token, each.ttl, row.now)

            outcomes.append((yield from self._change(each.name, change, GONE)))
        return outcomes

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        if hint and (yield Swap(name, hint, token, "")):
            return True  # nobody has touched the row since the acquire, so nobody waits

        def change(entry: Entry, row: Row) -> bool:
            return entry.release(attempt, token, row.now, row.wall)

        return (yield from self._change(name, change, False))

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        def change(entry: Entry, row: Row) -> bool:
            return entry.abandon(attempt, row.now, row.wall)

        return (yield from self._change(name, change, False))

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        def change(entry: Entry, row: Row) -> bool:
            return entry.interrupt(force, row.now, row.wall)

        return (yield from self._change(name, change, False))

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        rows: Sequence[Row] = yield Page(prefix, after, count)
        found = [seen for row in rows for seen in _entry(row).seen(row.now)]
        return found, rows[-1].name if len(rows) == count else None

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        row: Row = yield Read(name)
        return [seen for seen in _entry(row).seen(row.now) if seen.expires_in > 0]

    def read_note(self, name: str) -> Steps[str | None]:
        text: str | None = yield ReadNote(name)
        return text

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Steps[bool]:
        while True:
            row: Row = yield Read(name)
            if not _entry(row).holds(attempt, token, row.now):
                return False
            if (yield WriteNote(name, row.version, text)):
                return True

    def tidy(self) -> Steps[None]:
        for _ in range(TIDY_BATCHES):
            if not (yield Tidy()):
                return

    def _change(self, name: str, change: Callable[[Entry, Row], T], absent: T) -> Steps[T]:
        """Apply ``change`` to the entry of a name; ``absent`` where there is nothing to change."""
        while True:
            row: Row = yield Read(name)
            if not row.state:
                return absent
            entry = _entry(row)
            result = change(entry, row)
            if (yield from self._store(row, entry)):
                return result

    def _store(self, row: Row, entry: Entry) -> Steps[int]:
        """Swap if anything has changed, and wake whom that concerns. 0: another was faster."""
        version = row.version
        state = entry.dump()
        if state != row.state or entry.token != row.token:
            version = yield Swap(row.name, row.version, entry.token, state)
            if not version:
                return 0
        yield from self._ring(entry)
        return version or 1

    def _ring(self, entry: Entry) -> Steps[None]:
        dead = set()
        for session, attempt in entry.rings:
            if session not in dead and not (yield Ring(session, attempt)):
                dead.add(session)
        if dead:  # granted to the dead: pass it on
            yield from self._change(entry.name, lambda e, r: e.bury(dead, r.now, r.wall), None)

    def _dead(self, sessions: Sequence[str]) -> Steps[set[str]]:
        dead = set()
        for session in sessions:
            if not (yield Alive(session)):
                dead.add(session)
        return dead


class JointEntryStore(EntryStore):
    """For drivers that can swap several rows in one step."""

    def acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        while True:
            swaps, entries, grants = [], [], []
            for place, ask in enumerate(asks):
                row, entry, reply = yield from self._asked(ask)
                if isinstance(reply, (Busy, Mismatch)):
                    return Refusal(place, reply)
                assert isinstance(reply, Grant)
                swaps.append(Swap(ask.name, row.version, entry.token, entry.dump()))
                entries.append(entry)
                grants.append(reply)
            versions: Sequence[int] = yield SwapAll(swaps)
            if versions:
                for entry in entries:
                    yield from self._ring(entry)
                return [_with_hint(*each) for each in zip(grants, entries, versions, strict=True)]


def _with_hint(grant: Grant, entry: Entry, version: int) -> Grant:
    """The grant, with the row's version if a release can go by that: when nobody else is there, and no min_hold."""
    alone = len(entry.holders) == 1 and not entry.queue and grant.token == entry.token and not entry.holders[0].rest
    return grant._replace(hint=version if alone else None)


def _entry(row: Row) -> Entry:
    return Entry.load(row.name, row.token, row.state)
