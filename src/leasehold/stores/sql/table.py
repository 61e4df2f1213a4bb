"""The rows of one namespace: one operation for each thing that is asked about them, as the store composes them.

Where ``waits`` is given, it is for an acquire: whether to wait for a row that somebody has locked, for a while, rather
than hardly. Such an operation raises Locked. Without it, it waits as long as there is time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...core.entry import Entry
from ...core.protocol import Ask, Renewal, Steps
from ...errors import StoreNotReady
from ..common.entries import Row
from .requests import ASK, GIVE, RENEW, Result, Statement, Turn
from .rows import check_format, columns_of, row_of
from .session import Session

_NONE: Mapping[str, Any] = {}


class Table:
    def __init__(self, session: Session) -> None:
        self.session = session
        self._dialect = session.dialect

    def _about(
        self, sql: str, name: str, urgency: int = ASK, *, waits: bool | None = None, values: Mapping[str, Any] = _NONE
    ) -> Steps[Result]:
        """A statement about one name."""
        statement = Statement(sql, {**self._dialect.key(self.session.namespace, name), **values})
        return self.session.ask(statement, Turn(urgency, (name,)), waits)

    def _row(self, name: str, now: int, found: Sequence[Any]) -> Row:
        return row_of(name, now, found, self.session.address, self._dialect.table)

    # One name.

    def read(self, name: str, urgency: int = ASK) -> Steps[Row]:
        """The row, which may be damaged. Where it is missing, its version is 0."""
        result = yield from self._about(self._dialect.READ, name, urgency)
        now, *found = result.rows[0]
        self.session.clock_is(now)
        return self._row(name, now, found)

    def take(self, ask: Ask, waits: bool) -> Steps[int]:
        """Take a free lock without waiters. Returns the token, or 0."""
        result = yield from self._take(self._dialect.TAKE, ask, waits)
        return self._dialect.taken(result)

    def take_or_join(self, ask: Ask, waits: bool) -> Steps[int | Row]:
        """The same; or join the queue, behind the holder and the other waiters. Returns the token; the Row if it has
        joined, where the server returns it; else 0."""
        try:
            result = yield from self._take(self._dialect.TAKE_OR_JOIN, ask, waits)
        except StoreNotReady:
            return 0  # the queue is damaged, or the whole table: whoever reads the row learns which
        found = self._dialect.taken_or_joined(ask.attempt, result)
        if isinstance(found, int):
            return found
        now, *columns = found
        return self._row(ask.name, now, columns)

    def _take(self, sql: str, ask: Ask, waits: bool) -> Steps[Result]:
        who = {"attempt": ask.attempt, "session": self.session.address, "owner": ask.owner}
        return self._about(
            sql, ask.name, waits=waits, values={**who, "kind": ask.kind, "data": ask.data, "ttl": ask.ttl}
        )

    def accept(self, name: str, attempt: str, ttl: int) -> Steps[tuple[int, bool]]:
        """Take what a release has granted to the attempt meanwhile. Returns the token, or 0, and whether others wait
        too, so that ``free`` would not apply."""
        result = yield from self._about(
            self._dialect.ACCEPT, name, GIVE, waits=True, values={"attempt": attempt, "ttl": ttl}
        )
        return self._dialect.accepted(result)

    def free(self, name: str, attempt: str, token: int) -> Steps[bool]:
        """Release a name without waiters. Returns whether it was released."""
        result = yield from self._about(self._dialect.FREE, name, GIVE, values={"attempt": attempt, "token": token})
        return result.touched > 0

    def swap(self, row: Row, entry: Entry, waits: bool | None = None) -> Steps[bool]:
        """Store the entry if the row is still the one that was read, and send the wake-ups. Returns whether."""
        dialect, session = self._dialect, self.session
        values = columns_of(entry.token, entry.state())
        if row.version:
            values |= {**dialect.key(session.namespace, row.name), "version": row.version}
            statement = dialect.exchange(values, [ring for ring in entry.rings if session.is_another(ring[0])])
            done = (yield from session.ask(statement, Turn(names=(row.name,)), waits)).touched > 0
        else:
            done = dialect.taken((yield from self._about(dialect.INSERT, row.name, waits=waits, values=values))) > 0
        if done:
            yield from session.ring(entry.rings)
        return done

    def can_hold(self, name: str) -> Steps[bool]:
        """Whether the name is free for a transaction to hold. Locks nothing."""
        result = yield from self._about(self._dialect.CAN_HOLD, name)
        return all(free for (free,) in result.rows)

    def read_note(self, name: str) -> Steps[str | None]:
        result = yield from self._about(self._dialect.READ_NOTE, name)
        for format, note in result.rows:
            check_format(name, format, self._dialect.table)
            return str(note) if note is not None else None
        return None

    def write_note(self, row: Row, text: str | None) -> Steps[bool]:
        """Store the note if the row is still the one that was read."""
        result = yield from self._about(
            self._dialect.WRITE_NOTE, row.name, values={"version": row.version, "note": text}
        )
        return result.touched > 0

    def mend(self, name: str) -> Steps[bool]:
        """Make a damaged record a free one. Returns whether: not one of a newer format."""
        result = yield from self._about(self._dialect.MEND, name)
        return result.touched > 0

    # Several names.

    def read_all(self, names: Sequence[str], urgency: int = ASK) -> Steps[Sequence[Row]]:
        """The row of each, with its fault where it is damaged."""
        statement = self._dialect.about(self._dialect.READ_ALL, self.session.namespace, names)
        result = yield from self.session.ask(statement, Turn(urgency, names))
        there = {self._dialect.text(name): found for name, _, *found in result.rows if name is not None}
        now = result.rows[0][1]
        return [self._row(name, now, there.get(name, (None, 0))) for name in names]

    def swap_all(self, changes: Sequence[tuple[Row, Entry]]) -> Steps[bool]:
        """All of these swaps, which wake nobody, or none of them. Returns whether they were done."""
        changes = sorted(changes, key=lambda change: change[0].name)  # all processes lock rows in one order
        rows = [
            {"name": row.name, "version": row.version, **columns_of(entry.token, entry.state())}
            for row, entry in changes
        ]
        statement = self._dialect.exchange_all(self.session.namespace, rows)
        result = yield from self.session.ask(statement, Turn(names=[row.name for row, _ in changes]), False)
        return result.touched > 0

    def extend(self, batch: Sequence[Renewal]) -> Steps[tuple[Collection[Any], int]]:
        """Renew a batch of plain leases. Returns what is known to be renewed, as (name, attempt, token), and when that
        was by the server's clock, or 0. Where the server returns only how many it renewed, that is all or none."""
        result = yield from self.session.ask(self._dialect.extend(self.session.namespace, batch), Turn(RENEW))
        return self._dialect.extended(batch, result)

    def unlocked(self, names: Sequence[str]) -> Steps[Collection[str]]:
        """Those of these names whose rows are not locked, at once."""
        statement = self._dialect.about(self._dialect.UNLOCKED, self.session.namespace, names)
        result = yield from self.session.ask(statement, Turn(RENEW))
        return {self._dialect.text(name) for (name,) in result.rows}

    def page(self, prefix: str, after: str, most: int) -> Steps[Sequence[Row]]:
        """Up to so many rows that are in use, in order of name: after ``after``, with names that begin with
        ``prefix``."""
        statement = self._dialect.page(self.session.namespace, prefix, after, most)
        result = yield from self.session.ask(statement, Turn())
        return [self._row(self._dialect.text(name), now, found) for name, now, *found in result.rows]

    def purge(self) -> Steps[int]:
        """Delete some rows that have been dead for a day. Returns how many."""
        return (yield from self.session.ask(Statement(self._dialect.PURGE, {}), Turn())).touched

    def leftovers(self) -> Steps[Sequence[str]]:
        """Some names whose rows have expired but still have waiters or further holders."""
        result = yield from self._about(self._dialect.LEFTOVERS, "")
        return [self._dialect.text(name) for (name,) in result.rows]
