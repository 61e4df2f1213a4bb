"""What is asked of ZooKeeper for each operation, and how the answers are read. The stored shape is in ``nodes.py``.

``reading.py`` has what all operations need, ``asking.py`` how a lease is taken, ``several.py`` how several are,
``renewing.py`` how it is kept; here is what else becomes of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kazoo.exceptions import BadVersionError, NoNodeError

from ...core import clock
from ...core.protocol import SECOND, Steps, Store
from . import nodes
from .link import Link
from .renewing import Renewing
from .requests import Call, Calls, Multi, children, delete, exists, get, put
from .session import Session
from .stake import Stake

TIDIED = 200
"""Names that are looked at together."""
TIDYING = 0.25
"""How long tidying goes on while it finds something to remove. The keeper allows half a second, for all stores."""
OLD = 24 * 3600 * 1000


class ZooKeeperStore(Renewing, Store):
    """See :class:`leasehold.core.protocol.Store`, which says what each operation means."""

    scheme = "zookeeper"
    fair = True
    lacks: Mapping[str, str] = {}

    def __init__(self, link: Link, namespace: str) -> None:
        super().__init__(link, namespace)
        self._tidied = (int(clock.now() * 1000) % nodes.BUCKETS, "")
        """In which bucket to go on, and behind which name. Each ``Locks`` begins somewhere else."""

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        stake = self.link.find(attempt)
        if stake is None or not stake.held or (stake.name, stake.token) != (name, token):
            return False
        yield from self._up(stake.session)
        until = stake.since + stake.rest // 1000
        if stake.rest and until > self.link.leader_ms():
            child = nodes.rest_child(until, stake.shape, stake.limit, stake.weight, attempt)
            record = stake.record._replace(since=stake.since, token=stake.token)
            resting = Call("create", (f"{stake.parent}/{child}", record.encode()))
            answers = yield from self._end(stake, lambda path: Multi((Call("delete", (path, -1)), resting)))
            return not isinstance(answers[0], Exception)
        [answer] = yield from self._end(stake, delete)
        return not isinstance(answer, NoNodeError)

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        stake = self.link.find(attempt)
        if stake is not None and stake.path is not None:
            yield from self._up(stake.session)
            return (yield from self._remove(stake))
        session = yield from self._session(None if stake is None else stake.ttl / SECOND)
        parent = self._parent(session, name)
        look = yield from self._view(session, parent)
        paths = [f"{parent}/{node.child}" for node in look.find(attempt)]
        removed = yield Calls(session, [delete(path) for path in paths])
        if stake is not None:
            stake.unsure = True  # its creation may still be on the way
            self.link.drop(stake)
        return any(not isinstance(each, Exception) for each in removed)

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        session = yield from self._session(None)
        parent = self._parent(session, name)
        look = yield from self._view(session, parent)
        if force:
            paths = [f"{parent}/{node.child}" for node in look.taken()]
            removed = yield Calls(session, [delete(path) for path in paths])
            return any(not isinstance(each, Exception) for each in removed)
        told = False
        for node in look.holders:
            path = f"{parent}/{node.child}"
            said: Any = BadVersionError()
            while isinstance(said, BadVersionError):
                [found] = yield Calls(session, (get(path),))
                if isinstance(found, NoNodeError):
                    break
                data, stat = found
                record = nodes.decode(data, name)
                token, since = self._token(session, record, stat), record.since or stat.mtime
                record = record._replace(state=nodes.BROKEN, since=since, token=token)
                [said] = yield Calls(session, (put(path, record.encode(), stat.version),))
                told = told or not isinstance(said, Exception)
        return told

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Steps[bool]:
        while True:
            stake = self.link.find(attempt)
            if stake is None or not stake.held or (stake.name, stake.token) != (name, token):
                return False
            yield from self._up(stake.session)
            path = self._note(stake.session, name)
            change = Call("delete", (path, -1)) if text is None else Call("set_data", (path, text.encode()))
            place = stake.place()
            proof = Call("check", (place.path, place.version))
            [answers] = yield Calls(place.session, (Multi((proof, change)),))
            if isinstance(answers[1], NoNodeError) and text is not None:
                create = Call("create", (path, text.encode()))
                [answers] = yield Calls(stake.session, (Multi((proof, create)),))
                if isinstance(answers[1], NoNodeError):
                    yield from self._make(stake.session, path.rpartition("/")[0])
            if isinstance(answers[0], (NoNodeError, BadVersionError)):
                if (yield from self._explain(stake)) is not None:
                    return False
            elif not isinstance(answers[1], Exception):
                return True
            elif text is None and isinstance(answers[1], NoNodeError):
                return (yield from self._still_held(stake))

    def tidy(self) -> Steps[None]:
        """Remove some nodes of names that nobody has used for a day. No token rests on them.

        One bucket, and the next if there was something to remove; where time runs out, it goes on the next time."""
        session = yield from self._session(None)
        ends = clock.now() + TIDYING
        while True:
            bucket, after = self._tidied
            above = f"{self._root(session)}/{bucket:02x}"
            [names] = yield Calls(session, (children(above),))
            there = [] if isinstance(names, Exception) else sorted(name for name in names if name > after)
            found = yield from self.tidy_names(session, [f"{above}/{name}" for name in there[:TIDIED]])
            unfinished = len(there) > TIDIED
            self._tidied = (bucket, there[TIDIED - 1]) if unfinished else ((bucket + 1) % nodes.BUCKETS, "")
            if not (unfinished or found) or clock.now() >= ends:
                return

    def tidy_names(self, session: Session, paths: Sequence[str]) -> Steps[int]:
        """How many were to be removed."""
        yield from self._clock(session)
        stats = yield Calls(session, [exists(path) for path in paths])
        old = self.link.leader_ms() - OLD
        empty = [p for p, stat in zip(paths, stats, strict=True) if stat and not stat.numChildren and stat.ctime < old]
        yield Calls(session, [delete(path) for path in empty])  # one that is in use again is not empty: refused
        return len(empty)

    def _still_held(self, stake: Stake) -> Steps[bool]:
        """Whether the stake is as we left it, by the leader's word."""
        while True:
            place = stake.place()
            [[answer]] = yield Calls(place.session, (Multi((Call("check", (place.path, place.version)),)),))
            if not isinstance(answer, Exception):
                return True
            if (yield from self._explain(stake)) is not None:
                return False
