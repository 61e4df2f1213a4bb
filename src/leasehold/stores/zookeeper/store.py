"""What is asked of ZooKeeper for each operation, and how the answers are read.

``queue.py`` has how a lease is taken, ``joint.py`` how several are, ``renewing.py`` how it is kept; here is what else
becomes of it. All go by ``tree.py``, which knows where things are, and ``placing.py``, which knows where a stake is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kazoo.exceptions import BadVersionError, NoNodeError

from ...core import clock
from ...core.protocol import SECOND, Ask, Holding, Renewal, Reply, Steps, Store, Together
from ...errors import StoreError, StoreNotReady
from . import nodes
from .joint import SeveralNames
from .placing import Placement
from .queue import ZooKeeperQueue
from .renewing import Renewals
from .requests import Calls, Part, children, delete, exists, get, multi, put, sync
from .sessions import SessionPool, ZooKeeperSession
from .stakes import Stake, Stakes
from .tree import ZooKeeperTree, token_of, up

TIDIED = 200
"""Names that are looked at together."""
TIDYING = 0.25
"""How long tidying goes on while it finds something to remove. The keeper allows half a second, for all stores."""
OLD = 24 * 3600 * 1000


class ZooKeeperStore(Store):
    """See :class:`leasehold.core.protocol.Store`, which says what each operation means."""

    scheme = "zookeeper"
    fair = True
    lacks: Mapping[str, str] = {}

    def __init__(self, pool: SessionPool, stakes: Stakes, namespace: str) -> None:
        self.stakes = stakes
        self.tree = ZooKeeperTree(pool, stakes, namespace)
        self.placement = Placement(self.tree)
        self._queue = ZooKeeperQueue(self.tree, self.placement)
        self._several = SeveralNames(self.tree, self.placement)
        self._renewals = Renewals(self.placement)
        self._tidied = (int(clock.now() * 1000) % nodes.BUCKETS, "")
        """In which bucket to go on, and behind which name. Each ``Locks`` begins somewhere else."""

    def acquire(self, ask: Ask) -> Steps[Reply]:
        return self._queue.acquire(ask)

    def acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        return self._several.acquire_all(asks)

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreError]]:
        return self._renewals.renew(batch)

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        return self.tree.scan(prefix, after, count)

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        session = yield from self.tree.session(None)
        return (yield from self.tree.holdings(session, [name]))

    def read_note(self, name: str) -> Steps[str | None]:
        session = yield from self.tree.session(None)
        path = self.tree.note(session, name)
        _, found = yield Calls(session, (sync(path), get(path)))
        if isinstance(found, NoNodeError):
            return None
        try:
            return str(found[0] or b"", "utf-8")
        except UnicodeDecodeError as error:
            raise StoreNotReady(f"the note of {name!r} is damaged, or of another program: delete {path}") from error

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        stake = self.stakes.find(attempt)
        if stake is None or not stake.held or (stake.name, stake.token) != (name, token):
            return False
        yield from up(stake.session)
        until = stake.since + stake.rest // 1000
        if stake.rest and until > self.stakes.leader_ms():
            child = nodes.rest_child(until, stake.shape, stake.limit, stake.weight, attempt)
            record = stake.record._replace(since=stake.since, token=stake.token)
            resting = Part("create", (f"{stake.parent}/{child}", record.encode()))
            answers = yield from self.placement.end(stake, lambda path: multi((Part("delete", (path, -1)), resting)))
            return not isinstance(answers[0], Exception)
        [answer] = yield from self.placement.end(stake, delete)
        return not isinstance(answer, NoNodeError)

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        stake = self.stakes.find(attempt)
        if stake is not None and stake.path is not None:
            yield from up(stake.session)
            return (yield from self.placement.remove(stake))
        session = yield from self.tree.session(None if stake is None else stake.ttl / SECOND)
        parent = self.tree.parent(session, name)
        look = yield from self.tree.view(session, parent)
        paths = [f"{parent}/{node.child}" for node in look.find(attempt)]
        removed = yield Calls(session, [delete(path) for path in paths])
        if stake is not None:
            stake.unsure = True  # its creation may still be on the way
            self.stakes.drop(stake)
        return any(not isinstance(each, Exception) for each in removed)

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        session = yield from self.tree.session(None)
        parent = self.tree.parent(session, name)
        look = yield from self.tree.view(session, parent)
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
                token, since = token_of(session, record, stat), record.since or stat.mtime
                record = record._replace(state=nodes.BROKEN, since=since, token=token)
                [said] = yield Calls(session, (put(path, record.encode(), stat.version),))
                told = told or not isinstance(said, Exception)
        return told

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Steps[bool]:
        while True:
            stake = self.stakes.find(attempt)
            if stake is None or not stake.held or (stake.name, stake.token) != (name, token):
                return False
            yield from up(stake.session)
            path = self.tree.note(stake.session, name)
            change = Part("delete", (path, -1)) if text is None else Part("set_data", (path, text.encode()))
            place = self.stakes.place(stake)
            proof = Part("check", (place.path, place.version))
            [answers] = yield Calls(place.session, (multi((proof, change)),))
            if isinstance(answers[1], NoNodeError) and text is not None:
                create = Part("create", (path, text.encode()))
                [answers] = yield Calls(stake.session, (multi((proof, create)),))
                if isinstance(answers[1], NoNodeError):
                    yield from self.tree.make(stake.session, path.rpartition("/")[0])
            if isinstance(answers[0], (NoNodeError, BadVersionError)):
                if (yield from self.placement.explain(stake)) is not None:
                    return False
            elif not isinstance(answers[1], Exception):
                return True
            elif text is None and isinstance(answers[1], NoNodeError):
                return (yield from self._still_held(stake))

    def tidy(self) -> Steps[None]:
        """Remove some nodes of names that nobody has used for a day. No token rests on them.

        One bucket, and the next if there was something to remove; where time runs out, it goes on the next time."""
        session = yield from self.tree.session(None)
        ends = clock.now() + TIDYING
        while True:
            bucket, after = self._tidied
            above = f"{self.tree.root(session)}/{bucket:02x}"
            [names] = yield Calls(session, (children(above),))
            there = [] if isinstance(names, Exception) else sorted(name for name in names if name > after)
            found = yield from self.tidy_names(session, [f"{above}/{name}" for name in there[:TIDIED]])
            unfinished = len(there) > TIDIED
            self._tidied = (bucket, there[TIDIED - 1]) if unfinished else ((bucket + 1) % nodes.BUCKETS, "")
            if not (unfinished or found) or clock.now() >= ends:
                return

    def tidy_names(self, session: ZooKeeperSession, paths: Sequence[str]) -> Steps[int]:
        """How many were to be removed."""
        yield from self.tree.clock(session)
        stats = yield Calls(session, [exists(path) for path in paths])
        old = self.stakes.leader_ms() - OLD
        empty = [p for p, stat in zip(paths, stats, strict=True) if stat and not stat.numChildren and stat.ctime < old]
        yield Calls(session, [delete(path) for path in empty])  # one that is in use again is not empty: refused
        return len(empty)

    def _still_held(self, stake: Stake) -> Steps[bool]:
        """Whether the stake is as we left it, by the leader's word."""
        while True:
            place = self.stakes.place(stake)
            [[answer]] = yield Calls(place.session, (multi((Part("check", (place.path, place.version)),)),))
            if not isinstance(answer, Exception):
                return True
            if (yield from self.placement.explain(stake)) is not None:
                return False
