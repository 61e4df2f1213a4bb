"""What is asked of Redis, and how its answers are read. Written once; the drivers do the I/O.

Stored shape: a hash per name, a sorted set while somebody waits, and a hash with the name's note if it has one, which
alone has no expiry. ``record.lua`` and ``read_note.lua`` say what is in them. Their keys share the hash tag
``{namespace:name}``, so that a cluster keeps them in one slot.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.claim import Unsettled
from ...core.log import WARNING, log
from ...core.protocol import (
    BROKEN,
    GONE,
    RENEWED,
    SECOND,
    Ask,
    Busy,
    Grant,
    Holding,
    Mismatch,
    Missing,
    Refusal,
    Renewal,
    Reply,
    Steps,
    Store,
    Together,
)
from ...core.timing import STAGGER
from ...errors import StoreError, StoreUnavailable
from .errors import known, unreadable
from .requests import FindKeys, ScriptCall, ScriptCalls, all_well
from .scripts import (
    ABANDON,
    ACQUIRE,
    ACQUIRE_ALL,
    CLOCK,
    INTERRUPT,
    LOOK,
    LOOK_FOR,
    READ_NOTE,
    RELEASE,
    RENEW,
    WRITE_NOTE,
)

PREFIX = b"leasehold:{"
CHANNEL = "leasehold:session:"
ATTEMPT = re.compile(rb"[0-9A-Za-z_-]{1,64}")
_OUTCOMES = {1: RENEWED, 0: GONE, -1: BROKEN}
_LISTINGS = 4
"""How many listings can be under way at once without starting over."""
_MOST_UNANSWERED = 10_000
"""Of how many attempts it is kept that one of their acquires may yet arrive."""
_SOON = 0.3
"""Seconds after which a new waiter looks once more. It is new for less than 0.5 s, and has to look within 0.8 s."""


class RedisStore(Store):
    """See :class:`leasehold.core.protocol.Store`, which says what each operation means."""

    fair = True
    lacks: Mapping[str, str] = {}
    keeps_places = True

    def __init__(self, scheme: str, namespace: str, clustered: bool = False, quorum: bool = False) -> None:
        self.scheme = scheme
        self.session = b""
        """Where rings for us go."""
        self._waiting: set[str] = set()
        """Attempts that were told that they are in a queue."""
        self._leading: set[str] = set()
        """Attempts that were told that nobody who may be before them was heard."""
        space = namespace.replace("%", "%25").replace(":", "%3A").replace("}", "%7D")
        self._start = PREFIX + space.encode() + b":"
        self._clustered = clustered
        self._listings: dict[tuple[str, str], list[str]] = {}
        # By attempt, the number of the last try that got no answer: it may yet arrive (mark.lua).
        self._unanswered: dict[str, int] = {}
        self._quorum = b"2" if quorum else b"0"

    def begin(self, session: bytes) -> None:
        """Rings go there from now on: for a driver, when it is made, and in a forked child, where nobody waits."""
        self.session = (b"C" if self._clustered else b"") + session  # grant.lua tells them apart
        self._waiting, self._leading = set(), set()

    def called(self, attempt: str, leads: bool) -> None:
        """A push has called the attempt."""
        (self._leading.add if leads else self._leading.discard)(attempt)

    def forget(self, attempt: str) -> None:
        """The attempt no longer waits."""
        self._waiting.discard(attempt)
        self._leading.discard(attempt)

    def keys(self, name: str) -> tuple[bytes, bytes]:
        """The hash of a name and its queue."""
        key = self._start + name.encode() + b"}"
        return key, key + b":queue"

    def name(self, key: bytes) -> str:
        """The name that a hash is of."""
        return key[len(self._start) : -1].decode()

    def listing(self, prefix: str) -> FindKeys:
        """Asks for the hashes of all names that start with the prefix."""
        return FindKeys(_escape(self._start + prefix.encode()) + b"*}")

    def acquire(self, ask: Ask) -> Steps[Reply]:
        heir = () if ask.heir is None else (ask.heir[0].encode(), b"%d" % ask.heir[1])
        call = ScriptCall(ACQUIRE, self.keys(ask.name), (*self.asked(ask), *heir), claims=ask.attempt in self._waiting)
        if self._unanswered and ask.heir is None and (late := self._unanswered.get(ask.attempt)) is not None:
            call = call._replace(args=(*call.args, b"%d" % (late + 1)))
        try:
            reply = yield call
        except BaseException:
            self._not_answered(ask.attempt)
            raise
        if reply[0] == 1:
            gone = read_holding(ask.name, reply[3:]) if len(reply) > 3 else None
            return Grant(reply[1], taken_from=gone)
        match reply[0]:
            case 0:
                _, at, now, soon, left, *fields = reply
                holder = read_holding(ask.name, fields) if fields else None
                place = None if at < 0 else at
                look = soon / SECOND or None
                if ask.attempt in self._leading and left >= 0:
                    look = left / SECOND + 0.001  # those before it are dead: it looks in their place, and not later
                if place is not None:
                    self._waiting.add(ask.attempt)
                return Busy(holder, place, None if left < 0 else left / SECOND, (), now, look)
            case -2:
                return Missing()
            case _:
                return read_mismatch(ask.name, reply[1:])

    def _not_answered(self, attempt: str) -> None:
        """A try of it has failed, was given up on or cancelled. However the attempt ends, that leaves a mark."""
        if len(self._unanswered) >= _MOST_UNANSWERED:
            for old in list(self._unanswered)[: _MOST_UNANSWERED // 2]:
                self._unanswered.pop(old, None)
        self._unanswered[attempt] = self._unanswered.get(attempt, -1) + 1

    def asked(self, ask: Ask) -> tuple[bytes, ...]:
        """What is asked for, as arguments of a script."""
        return (
            ask.attempt.encode(),
            ask.owner.encode(),
            ask.kind.encode(),
            b"" if ask.data is None else ask.data.encode(),
            self.session,
            b"%d" % ask.weight,
            b"%d" % ask.ttl,
            b"%d" % ask.rest,
            f"{ask.shape} {ask.limit}".encode(),
            b"1" if ask.fair else b"0",
            b"1" if ask.queue else b"0",
            self._quorum,
        )

    def keep_waiting(self, batch: Sequence[Ask]) -> Steps[Sequence[Busy | None]]:
        """One script for each slot of a cluster: a node that does not answer is no matter of the waiters of others."""
        slots: dict[int, dict[str, list[int]]] = {}
        for number, ask in enumerate(batch):
            slots.setdefault(self._slot(ask.name), {}).setdefault(ask.name, []).append(number)
        calls = []
        for names in slots.values():
            args: list[bytes] = []
            for numbers in names.values():
                args += [b"%d" % len(numbers), *(batch[number].attempt.encode() for number in numbers)]
            calls.append(ScriptCall(LOOK_FOR, tuple(key for name in names for key in self.keys(name)), tuple(args)))
        answers: list[Busy | None] = [None] * len(batch)
        for names, reply in zip(slots.values(), (yield ScriptCalls(calls)), strict=True):
            if not isinstance(reply, StoreError):  # else they ask by themselves, and learn why
                for (name, numbers), (now, moves, places, *fields) in zip(names.items(), reply, strict=True):
                    holder = read_holding(name, fields) if fields else None
                    for number, place in zip(numbers, places, strict=True):
                        answers[number] = self._kept(batch[number].attempt, place, bool(moves), holder, now)
        return answers

    def _kept(self, attempt: str, place: int, moves: bool, holder: Holding | None, now: int) -> Busy | None:
        """The answer for one waiter; None if it has to ask for itself."""
        if place == -1:
            return None
        look = _SOON if place < -1 else None
        place = -2 - place if place < -1 else place
        left = None if holder is None else holder.expires_in
        if moves and (place == 0 or attempt in self._leading or (left is not None and -left >= STAGGER * place)):
            return None
        if attempt in self._leading and left is not None:
            look = min(look or left, left) + 0.001
        return Busy(holder, place, left, (), now, look)

    def acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        if len({self._slot(ask.name) for ask in asks}) > 1:
            return None  # no script runs on several nodes of a cluster
        keys = tuple(key for ask in asks for key in self.keys(ask.name))
        call = ScriptCall(ACQUIRE_ALL, keys, tuple(arg for ask in asks for arg in self.asked(ask)))
        try:
            code, *reply = yield call
        except BaseException:
            for ask in asks:
                self._not_answered(ask.attempt)
            raise
        match code:
            case 1:
                gone = [
                    read_holding(ask.name, each[1:]) if len(each) > 1 else None
                    for ask, each in zip(asks, reply, strict=True)
                ]
                return [Grant(each[0], None, taken_from) for each, taken_from in zip(reply, gone, strict=True)]
            case 0:
                holder = read_holding(asks[reply[0]].name, reply[2:])
                return Refusal(reply[0], Busy(holder, None, holder.expires_in, (), reply[1]))
            case -1:
                return Refusal(reply[0], read_mismatch(asks[reply[0]].name, reply[1:]))
            case _:
                return None

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreUnavailable]]:
        groups: dict[int, list[int]] = {}
        for number, each in enumerate(batch):
            groups.setdefault(self._slot(each.name), []).append(number)
        calls = []
        for numbers in groups.values():
            keys = tuple(self.keys(batch[number].name)[0] for number in numbers)
            args = []
            for number in numbers:
                each = batch[number]
                args += [each.attempt.encode(), b"%d" % each.token, b"%d" % each.ttl]
            calls.append(ScriptCall(RENEW, keys, tuple(args)))
        replies = yield ScriptCalls(calls)
        outcomes: list[str | StoreError] = [GONE] * len(batch)
        for numbers, reply in zip(groups.values(), replies, strict=True):
            for number in numbers:
                outcomes[number] = reply
            if not isinstance(reply, StoreError):
                for number, outcome in zip(numbers, reply, strict=True):
                    outcomes[number] = _OUTCOMES.get(outcome) or unreadable(batch[number].name, _told(outcome))
        return known(outcomes)

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        late = self._unanswered.get(attempt)
        marked = () if late is None else (b"%d" % late,)
        return bool((yield ScriptCall(RELEASE, self.keys(name), (attempt.encode(), b"%d" % token, *marked))))

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        self.forget(attempt)
        late = self._unanswered.get(attempt)
        marked = () if late is None else (b"%d" % late,)
        found = yield ScriptCall(ABANDON, self.keys(name), (attempt.encode(), *marked))
        self._unanswered.pop(attempt, None)
        return bool(found)

    def give_back(self, batch: Sequence[Unsettled]) -> Steps[bool]:
        """Release or abandon many, as each would be by itself, in one go."""
        all_well((yield ScriptCalls([next(self._giving_back(owed)) for owed in batch])))
        return True

    def _giving_back(self, owed: Unsettled) -> Steps[bool]:
        if owed.token is None:
            return self.abandon(owed.name, owed.attempt)
        return self.release(owed.name, owed.attempt, owed.token, None)

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        return bool((yield ScriptCall(INTERRUPT, self.keys(name), (b"1" if force else b"0",))))

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        """Redis lists keys in no order, so the names of a whole listing are kept from page to page."""
        names = self._listings.pop((prefix, after), None)
        if names is None:
            names = sorted({self.name(key) for key in (yield self.listing(prefix)) if _is_utf8(key)})
            names = names[bisect.bisect_right(names, after) :]
        page, rest = names[:count], names[count:]
        replies = yield ScriptCalls([ScriptCall(LOOK, self.keys(name), ()) for name in page])
        found = list(self._readable(page, replies))
        if not rest:
            return found, None
        while len(self._listings) >= _LISTINGS:  # nobody came back for it
            self._listings.pop(next(iter(self._listings)), None)
        self._listings[prefix, page[-1]] = rest
        return found, page[-1]

    def _readable(self, names: Sequence[str], replies: Sequence[Any]) -> Iterator[Holding]:
        """A record that cannot be read is left out of a listing, and told of."""
        for name, reply in zip(names, replies, strict=True):
            try:
                if isinstance(reply, StoreUnavailable):
                    raise reply
                if isinstance(reply, StoreError):
                    raise unreadable(name, str(reply))
                yield from [read_holding(name, each) for each in reply]
            except StoreUnavailable:
                raise
            except StoreError as error:
                log(WARNING, "%s", error)

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        reply = yield ScriptCall(LOOK, self.keys(name), ())
        return [seen for seen in (read_holding(name, each) for each in reply) if seen.expires_in > 0]

    def note_key(self, name: str) -> bytes:
        return self.keys(name)[0] + b":note"

    def read_note(self, name: str) -> Steps[str | None]:
        found = yield ScriptCall(READ_NOTE, (self.note_key(name),), ())
        try:
            return None if found is None else _text(found)
        except ValueError:
            raise unreadable(name, "LEASEHOLDRECORD a note") from None

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Steps[bool]:
        args = (attempt.encode(), b"%d" % token, *(() if text is None else (text.encode(),)))
        call = ScriptCall(WRITE_NOTE, (*self.keys(name), self.note_key(name)), args)
        return bool((yield call))

    def read_clock(self, name: str) -> Steps[int | None]:
        return int((yield ScriptCall(CLOCK, self.keys(name)[:1], ())))

    def tidy(self) -> Steps[None]:
        """Nothing to do: the keys expire by themselves, a day after their last use."""
        yield from ()

    def _slot(self, name: str) -> int:
        if not self._clustered:
            return 0
        from redis.crc import key_slot

        return int(key_slot(self.keys(name)[0]))


def read_ring(payload: bytes) -> tuple[str | None, bool]:
    """Which attempt a push calls, None when it is not one of ours; and whether nobody before it was heard."""
    attempt, _, news = payload.partition(b" ")
    return attempt.decode() if ATTEMPT.fullmatch(attempt) else None, news.startswith(b"next ")


def read_holding(name: str, fields: Sequence[Any]) -> Holding:
    """What a reply tells of a holder. Raises StoreError if that does not have the form of one."""
    try:
        return _read_holding(name, fields)
    except (ValueError, TypeError, RecursionError):
        raise unreadable(name, "LEASEHOLDRECORD a holder") from None


def _read_holding(name: str, fields: Sequence[Any]) -> Holding:
    attempt, owner, kind, data, token, age, left, waiters = fields
    return Holding(
        name,
        _text(attempt),
        _text(owner),
        _text(kind),
        _json(data),
        token,
        age / SECOND,
        left / SECOND,
        waiters,
    )


def read_mismatch(name: str, found: Sequence[Any]) -> Mismatch:
    try:
        shape, _, limit = _text(found[0]).rpartition(" ")
        return Mismatch(shape, int(limit))
    except (ValueError, IndexError, AttributeError):
        raise unreadable(name, "LEASEHOLDRECORD a shape") from None


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


def _told(outcome: Any) -> str:
    return outcome.decode(errors="replace") if isinstance(outcome, bytes) else str(outcome)


def _is_utf8(key: bytes) -> bool:
    try:
        key.decode()
    except ValueError:
        return False
    return True


def _json(data: bytes | str) -> str | None:
    """Data of a holder, which is JSON, or nothing. Raises ValueError, RecursionError."""
    text = _text(data)
    if text:
        json.loads(text)
    return text or None


def _escape(pattern: bytes) -> bytes:
    """The text as a pattern that matches nothing else."""
    for special in (b"\\", b"*", b"?", b"[", b"]"):
        pattern = pattern.replace(special, b"\\" + special)
    return pattern
