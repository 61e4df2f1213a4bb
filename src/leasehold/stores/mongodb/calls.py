"""How a waiter hears that it was granted a lease: what both MongoDB drivers share.

Whoever changes a document leaves in it whom that calls (``call``). There are two ways to hear of it:

* a **change stream** of the leases, on replica sets: the change itself is the call, once a majority has it;
* a **tailable cursor** on the small capped collection ``<collection>.calls``, into which whoever made the change puts
  the call once it was acknowledged. It works on a standalone server too. On a sharded cluster it comes first: a change
  stream there waits for the clocks of all shards, which idle ones tell every ten seconds.

A session says by its first letter that it listens to the stream, so that nobody need put its calls anywhere.
Generators here yield functions of an :class:`Access`; a driver calls them, or awaits what they return.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pymongo
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from ...core import clock
from ...core.log import INFO, WARNING, log
from ...core.protocol import HELD, Busy, Grant, Steps
from ...core.timing import FIRST_TERM
from ...errors import StoreError, StoreUnavailable
from . import link as mongo_link
from .lanes import LANES, Lane, lane_of
from .link import FORBIDDEN, Access, Link, translate
from .waiting import Waiters

STREAM, CALLS = "stream", "calls"
MARK = "s"
"""Before the session of whoever listens to the stream; the rest is hexadecimal."""
NOT_CAPPED = 2
EXISTS = 48
CAPPED_BY = "capped by"
"""The document of whoever caps the collection of calls, which is copied into the capped one."""
PATIENCE = [False] * 4
"""How often to wait for whoever is to cap it, who may have died: 1.5 s in all."""
MAKE_WAY = 0.0003
"""How long a thread that has called another leaves the interpreter to it: to ask for the next call takes longer."""
LONGEST_PAUSE = 5.0
REFUSALS = {13, 18, 59, 72, 115, 166, 303, 323, 8000, 40324, 40573}
"""Not allowed, or unknown to this server: asking again would be of no use."""


class Pause(NamedTuple):
    """Wait so many seconds, unless it is stopped before."""

    seconds: float


class MakeWay(NamedTuple):
    """Let whoever was called go first."""


def callees(call: object) -> Iterator[tuple[str, str, Grant | Busy | None]]:
    """Session and attempt of each that is called, and the lease itself if it was granted. What is no call is none.

    Who is next after one that was granted it is told so: that one has a first term, from then on."""
    at, *each = call.split(" ") if isinstance(call, str) else [""]
    called = [found.groups() for one in each if (found := _CALLED.fullmatch(one))] if _AT.fullmatch(at) else []
    granted = any(token for _, _, token in called)
    for session, attempt, token in called:
        now = int(at) * 1000
        if token:
            yield session, attempt, Grant(int(token), at=now)
        else:
            yield session, attempt, Busy(None, 0, FIRST_TERM, now=now) if granted else None


_AT = re.compile("[0-9]{1,15}")
_CALLED = re.compile("([^/]*)/([^/]*)/([0-9]{0,19})")


class Listener:
    """The part of both drivers that is not about I/O: its client, its calls, and the index."""

    client: type[Any]
    semaphore: type[Any]

    def __init__(self, link: Link, waiters: Waiters | None = None) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._link = link
        self._waiters = Waiters() if waiters is None else waiters
        self._reset()

    def _reset(self) -> None:
        self._waiters.reset()
        self._id = self.session = mongo_link.new_session()
        self._mutex = threading.Lock()
        self._access: Access | None = None
        self._lanes: list[Lane] = []
        self._listening: set[str] = set()
        self._cursor: Any = None
        self._way: str | None = None
        self._up = self._broke = False
        self._since = 0.0  # when the cursor was opened
        self._refused = False
        self._called = self._mute = False
        self._stopped = False

    def _open(self) -> Access:
        access = self._access
        if access is None:
            with self._mutex:
                access = self._access
                if access is None:
                    if self._stopped:  # nobody would close it
                        raise StoreUnavailable(f"{self._link.where}: this Locks is closed")
                    client = self._link.client or self.client(self._link.url, **mongo_link.OUR_CLIENT)
                    access = Access(self._link, client)
                    self._lanes = [Lane(self.semaphore(access.most_calls)) for _ in range(LANES)]
                    self._access = access
        return access

    def _lane(self, steps: Steps[Any]) -> Lane | None:
        """Where this operation waits for its turn. None: it needs none."""
        try:
            self._open()
        except PyMongoError as error:
            raise translate(error, self._link.where) from error
        lane = lane_of(steps)
        return None if lane is None else self._lanes[lane]

    def _hears(self, attempt: str) -> bool:
        """Whether what happens after the last answer to this attempt is heard. What happened before the cursor was
        opened is not: then it must ask again."""
        waiter = self._waiters.get(attempt)
        return self._up and (waiter is None or waiter.told >= self._since)

    def forget(self, attempt: str) -> None:
        self._listening.discard(attempt)
        self._waiters.pop(attempt, None)

    def _ring(self, attempt: str, news: Grant | Busy | None = None) -> None:
        if isinstance(news, Busy):
            waiter = self._waiters.get(attempt)
            news = None if waiter is None else waiter.give_time(news)
        self._waiters.ring(attempt)
        self.on_ring(attempt, news)

    # Calling.

    def _pass_on(self, call: str) -> Steps[None]:
        to = []
        for session, attempt, news in callees(call):
            if session.endswith(self._id):
                if not self._hears_stream:
                    self._ring(attempt, news)
            elif not session.startswith(MARK):
                to.append(session)
        if not to or self._mute:
            return
        try:
            if not self._called:
                self._called = yield from _make_calls()
            if self._called:
                yield lambda access: access.calls.insert_one({"to": to, "call": call})
        except PyMongoError as error:  # whoever waits looks again by itself
            if _refuses(error):
                self._mute = True
                reason = str(translate(error, self._link.where))
                log(INFO, "releases do not wake waiters of other processes: %s", reason, event="mute", reason=reason)

    @property
    def _hears_stream(self) -> bool:
        return self._up and self._way == STREAM

    # The index.

    def _tidy(self) -> Steps[None]:
        """See that the TTL index is there, once per process and collection."""
        key = self._open().index_key
        if key in mongo_link.indexed:
            return
        try:
            with pymongo.timeout(mongo_link.INDEX_LIMIT):
                yield lambda access: access.leases.create_index("purge", name=mongo_link.INDEX, expireAfterSeconds=0)
        except PyMongoError as error:
            if error.timeout or not isinstance(error, OperationFailure):
                mongo_link.tell_of_index(self._link, error, INFO)
                return  # another time
            mongo_link.tell_of_index(self._link, error, WARNING)
        mongo_link.indexed.add(key)

    # Listening.

    def _hear(self) -> Steps[None]:
        """Listen until it is stopped, in the best way that is allowed."""
        try:
            access = self._open()
        except StoreError:
            return  # closed, or a client of another event loop
        if not access.take_connection():
            self._refuse("the client's pool has no connection left for the listener: raise maxPoolSize")
            return
        try:
            reasons = []
            for way in ways(access):
                reason = yield from self._hear_by(way, access)
                if reason is None:
                    return
                reasons.append(f"{way}: {reason}")
                if self.session != self._id:
                    break  # others do not put our calls anywhere
            self._refuse("; ".join(reasons) or "push=none")
        finally:
            access.give_connection_back()

    def _hear_by(self, way: str, access: Access) -> Steps[str | None]:
        """Until it is stopped (None), or it turns out not to be allowed: then why."""
        pauses, patience = reopen_pauses(), iter(PATIENCE)
        while not self._stopped:
            before = self._since
            try:
                try:
                    opened = yield from self._follow(way)
                    if not opened and way == CALLS:
                        with pymongo.timeout(mongo_link.SILENCE):
                            made = yield from _make_calls()
                        if not made:
                            return "the collection does not exist, and this user may not create it"
                        opened = yield from self._follow(way)
                except OperationFailure as error:
                    if way != CALLS or error.code != NOT_CAPPED:
                        raise
                    with pymongo.timeout(mongo_link.SILENCE):
                        if (yield _of_others):
                            return f"{access.calls.name} has documents of another program"
                        # An insert after somebody had dropped the collection has made it anew.
                        opened = (yield from _may_cap()) or next(patience, True)
                        if opened:
                            yield _cap
                if opened:
                    pauses, patience = reopen_pauses(), iter(PATIENCE)
            except PyMongoError as error:
                if _refuses(error):
                    return str(translate(error, access.link.where))
                if self._since > before and clock.now() - self._since > LONGEST_PAUSE:
                    pauses = reopen_pauses()  # it was up for long: not the next of many failures
            yield Pause(next(pauses))
        return None

    def _follow(self, way: str) -> Steps[bool]:
        """Hear calls until the cursor breaks or it is stopped.

        False when there was nothing to wait on: no such collection, or no document in it. An answer that does not
        come in time is an error: whatever the client's options are, a connection that is dead is noticed."""
        opened = False
        with pymongo.timeout(mongo_link.SILENCE):
            # A cursor that is opened while the first document is being put there may hear nothing for as long as it
            # lives: it has found none, and the server keeps it because there is one by then.
            if way == CALLS and (yield _any_call) is None:
                return False
            cursor = self._cursor = yield lambda access: open_cursor(access, way, self._id)
        try:
            while cursor.alive and not self._stopped:
                if not opened:
                    self._since = clock.now()
                    self._way = way
                    if way == STREAM:
                        self.session = MARK + self._id
                    opened = self._up = True  # last: whoever sees that it is up may ask by which way
                    if self._broke:
                        self._wake_all()  # what was called meanwhile, or undone by an election, is not heard
                    elif way == STREAM:
                        self.on_ring(HELD)  # nor what was broken before; who waits asks again (_hears)
                asked = clock.now()
                with pymongo.timeout(mongo_link.AWAIT + mongo_link.SILENCE):
                    found = yield lambda access: cursor.try_next()
                if found is not None:
                    for session, attempt, news in callees(found.get("call")):
                        if session.endswith(self._id):
                            self._ring(attempt, news)
                    if clock.now() - asked > MAKE_WAY:  # else there are more, which have come in the same answer
                        yield MakeWay()
            return opened
        finally:
            self._cursor = None
            if opened:
                self._up, self._broke = False, True
                self._wake_all()

    def _wake_all(self) -> None:
        """Whoever waits has to look by itself."""
        for attempt in list(self._listening):
            self._ring(attempt)

    def _refuse(self, reason: str) -> None:
        self._refused = True
        log(INFO, "no push through MongoDB, waiters poll: %s", reason, event="no_push", reason=reason)

    def _interrupt(self) -> Steps[None]:
        """Have the request for calls that is under way answered. Servers notice a killed cursor only when something
        is written: to the collection of calls, or to the log of the replica set, which a linearizable read does."""
        cursor = self._cursor
        if cursor is None:
            return
        if self._way == CALLS:
            if (yield _any_call) is not None:
                yield lambda access: access.calls.insert_one({"to": [self._id], "call": ""})
            return
        kill = {"killCursors": self._link.collection, "cursors": [cursor.cursor_id]}
        yield lambda access: access.database.command(kill)
        linearizable = ReadConcern("linearizable")
        yield lambda access: access.leases.with_options(read_concern=linearizable).find_one({"_id": 0}, {"_id": 1})


def ways(access: Access) -> Sequence[str]:
    """Ways to hear calls, best first."""
    match access.link.push:
        case "auto":
            return (CALLS, STREAM) if access.sharded else (STREAM, CALLS)
        case "none":
            return ()
        case chosen:
            return (chosen,)


def open_cursor(access: Access, way: str, session: str) -> Any:
    if way == CALLS:
        command = {"find": access.calls.name, "filter": {"to": session}, "tailable": True, "awaitData": True}
    else:
        # A document that has changed much is replaced in the log. The call in it may be an old one: no harm.
        changed, replaced = "updateDescription.updatedFields.call", "fullDocument.call"
        mine = {"$or": [{changed: {"$regex": session}}, {replaced: {"$regex": session}}]}
        call = {"call": {"$ifNull": [f"${changed}", f"${replaced}"]}}
        pipeline = [{"$changeStream": {}}, {"$match": mine}, {"$project": call}]
        command = {"aggregate": access.leases.name, "pipeline": pipeline, "cursor": {}}
    return access.database.cursor_command(command, max_await_time_ms=int(mongo_link.AWAIT * 1000))


def _make_calls() -> Steps[bool]:
    """Make the capped collection if it is not there. It must have a document, or no cursor can wait at its end."""
    if (yield _any_call) is not None:
        return True
    try:
        yield lambda access: access.database.create_collection(
            access.calls.name, capped=True, size=mongo_link.CALLS_SIZE, check_exists=False
        )
    except OperationFailure as error:
        if error.code == FORBIDDEN:
            return (yield _any_call) is not None  # an insert could make it, uncapped
        if error.code != EXISTS:
            raise
    yield lambda access: access.calls.insert_one({"to": []})
    return True


def _any_call(access: Access) -> Any:
    return access.calls.find_one({}, {"_id": 1})


def _may_cap() -> Steps[bool]:
    """Whether the caller is the one that caps the collection. Each that did would make it anew, and leave those deaf
    who listen to it already: a server does not tell them before their request for calls is over."""
    try:
        yield lambda access: access.calls.insert_one({"_id": CAPPED_BY, "to": []})
    except DuplicateKeyError:
        return False
    return True


def _of_others(access: Access) -> Any:
    """A document that is no call, if there is one: capping the collection could throw such away."""
    return access.calls.find_one(mongo_link.NO_CALL, {"_id": 1})


def _cap(access: Access) -> Any:
    return access.database.command("convertToCapped", access.calls.name, size=mongo_link.CALLS_SIZE)


def _refuses(error: PyMongoError) -> bool:
    return isinstance(error, OperationFailure) and not error.timeout and error.code in REFUSALS


def reopen_pauses() -> Iterator[float]:
    """How long to wait before a cursor is opened again after it broke, each time it fails."""
    pause = 0.1
    while True:
        yield pause
        pause = min(pause * 2, LONGEST_PAUSE)
