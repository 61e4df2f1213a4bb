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

from ...core import clock
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
from ...errors import StoreError, StoreUnavailable
from ..common import waiting
from ..common.waiting import Wake, looked
from .errors import known, unreadable
from .requests import FindKeys, ScriptCall, ScriptCalls, all_well
from .scripts import (
    ABANDON,
    ACQUIRE,
    ACQUIRE_ALL,
    INTERRUPT,
    LOOK,
    LOOK_FOR,
    READ_NOTE,
    RELEASE,
    RENEW,
    WRITE_NOTE,
)
from .waiter import Waiter, Waiters

PREFIX = b"leasehold:{"
CHANNEL = "leasehold:session:"
ATTEMPT = re.compile(rb"[0-9A-Za-z_-]{1,64}")
_OUTCOMES = {1: RENEWED, 0: GONE, -1: BROKEN}
_LISTINGS = 4
"""How many listings can be under way at once without starting over."""
_MOST_UNANSWERED = 10_000
"""Of how many attempts it is kept that one of their acquires may yet arrive."""
_NEW = -2
"""The place of one that has just come (look_for.lua)."""
_AT_ONCE = 100
"""How many waiters one script looks for: the server serves nobody else meanwhile, for a millisecond or a few."""


class RedisStore(Store):
    """See :class:`leasehold.core.protocol.Store`, which says what each operation means."""

    fair = True
    lacks: Mapping[str, str] = {}

    def __init__(self, scheme: str, namespace: str, clustered: bool = False, quorum: bool = False) -> None:
        self.scheme = scheme
        self.session = b""
        """Where rings for us go."""
        self.waiters = Waiters()
        """Those who were told that they are in the queue."""
        space = namespace.replace("%", "%25").replace(":", "%3A").replace("}", "%7D")
        self._start = PREFIX + space.encode() + b":"
        self._clustered = clustered
        self._listings: dict[tuple[str, str], list[str]] = {}
        # By attempt, the number of the last try that got no answer: it may yet arrive (mark.lua).
        self._unanswered: dict[str, int] = {}
        self._push = b"2" if quorum else b"0"

    def begin(self, session: bytes) -> None:
        """Rings go there from now on: for a driver, when it is made, and in a forked child, where nobody waits."""
        self.session = (b"C" if self._clustered else b"") + session  # grant.lua tells them apart
        self.waiters.reset()

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
        waiter = self.waiters.get(ask.attempt)
        if waiter is not None and (known := (yield from looked(waiter, self._look(waiter)))) is not None:
            return known
        heir = () if ask.heir is None else (ask.heir[0].encode(), b"%d" % ask.heir[1])
        call = ScriptCall(ACQUIRE, self.keys(ask.name), (*self.asked(ask), *heir), claims=waiter is not None)
        if self._unanswered and ask.heir is None and (late := self._unanswered.get(ask.attempt)) is not None:
            call = call._replace(args=(*call.args, b"%d" % (late + 1)))
        sent = clock.now()
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
                if waiter is not None and waiter.leads and left >= 0:
                    look = left / SECOND + 0.001  # those before it are dead: it looks in their place, and not later
                busy = Busy(holder, place, None if left < 0 else left / SECOND, (), now, look)
                if place is not None:
                    self.waiters[ask.attempt] = Waiter(ask, self._slot(ask.name), busy, sent)
                else:
                    self.waiters.pop(ask.attempt, None)
                return busy
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
            self._push,
        )

    def _look(self, waiter: Waiter) -> Steps[Busy | None]:
        """How the name stands, if there is no need to ask for this one alone."""
        while (look := self.waiters.begin_look(waiter.slot)) is None:
            began = self.waiters.look_began(waiter.slot)
            known = None if began is None else waiter.rely(began)
            if known is None or self.waiters.look_began(waiter.slot) == began:
                return known  # whoever looks sees how long it would sleep, and wakes it if that is too long
        others: list[Waiter] = []
        try:
            known = waiter.answer()
            if known is None:
                crowd = [each for each in self.waiters.asleep() if each.slot == waiter.slot]
                if len(crowd) > 1:
                    crowd = _soonest(crowd)
                    yield from self._look_for(crowd)
                    known = waiter.answer()
                    others = [each for each in crowd if each is not waiter]
        finally:
            look.release()
        for other in others:
            if self.waiters.get(other.ask.attempt) is other and (other.rung or other.until() < other.due):
                other.due = 0.0
                yield Wake(other.ask.attempt)
        return known

    def _look_for(self, waiters: Sequence[Waiter]) -> Steps[None]:
        """Keep the places of all of them, whose names share a slot, and tell them how these stand."""
        for start in range(0, len(waiters), _AT_ONCE):
            by_name: dict[str, list[Waiter]] = {}
            for waiter in waiters[start : start + _AT_ONCE]:
                by_name.setdefault(waiter.ask.name, []).append(waiter)
            args: list[bytes] = []
            for some in by_name.values():
                args += [b"%d" % len(some), *(waiter.ask.attempt.encode() for waiter in some)]
            call = ScriptCall(LOOK_FOR, tuple(key for name in by_name for key in self.keys(name)), tuple(args))
            sent = clock.now()
            reply = yield call
            for (name, some), (now, moves, places, *fields) in zip(by_name.items(), reply, strict=True):
                holder = read_holding(name, fields) if fields else None
                for waiter, place in zip(some, places, strict=True):
                    if place == _NEW and waiter.until() > clock.now():
                        continue  # what is seen now is of no use to it: it has its own time
                    if place < 0 or (moves and place == 0):
                        waiter.rung = True
                    elif holder is not None and not moves:
                        waiter.tell(Busy(holder, place, holder.expires_in, (), now), sent)

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
        for place, each in enumerate(batch):
            groups.setdefault(self._slot(each.name), []).append(place)
        calls = []
        for places in groups.values():
            keys = tuple(self.keys(batch[place].name)[0] for place in places)
            args = []
            for place in places:
                each = batch[place]
                args += [each.attempt.encode(), b"%d" % each.token, b"%d" % each.ttl]
            calls.append(ScriptCall(RENEW, keys, tuple(args)))
        replies = yield ScriptCalls(calls)
        outcomes: list[str | StoreError] = [GONE] * len(batch)
        for places, reply in zip(groups.values(), replies, strict=True):
            for place in places:
                outcomes[place] = reply
            if not isinstance(reply, StoreError):
                for place, outcome in zip(places, reply, strict=True):
                    outcomes[place] = _OUTCOMES.get(outcome) or unreadable(batch[place].name, _told(outcome))
        return known(outcomes)

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        late = self._unanswered.get(attempt)
        marked = () if late is None else (b"%d" % late,)
        return bool((yield ScriptCall(RELEASE, self.keys(name), (attempt.encode(), b"%d" % token, *marked))))

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        self.waiters.pop(attempt, None)
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

    def tidy(self) -> Steps[None]:
        """Nothing to do: the keys expire by themselves, a day after their last use."""
        yield from ()

    def _slot(self, name: str) -> int:
        if not self._clustered:
            return 0
        from redis.crc import key_slot

        return int(key_slot(self.keys(name)[0]))


def _soonest(crowd: list[Waiter]) -> list[Waiter]:
    """Those whose time comes while a look that begins now may be relied on, so that nobody relies on one that is not
    for it; and as many of the next as fit into its last script. Not all: in a long queue that moves, somebody who has
    just come is due all the time, and the rest have been looked for a moment ago."""
    by_time = sorted(crowd, key=Waiter.until)
    due = bisect.bisect_right(by_time, clock.now() + waiting.UNDER_WAY, key=Waiter.until)
    return by_time[: -(-due // _AT_ONCE) * _AT_ONCE]


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
