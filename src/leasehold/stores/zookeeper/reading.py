"""Where things are in ZooKeeper, and how they are read: after a ``sync``, if nothing was written before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kazoo.exceptions import NoAuthError, NoNodeError

from ...core.log import WARNING, log
from ...core.protocol import Holding, Steps
from ...errors import StoreNotReady, StoreUnavailable
from . import nodes
from .link import Link
from .nodes import Node, Rest, View, view
from .requests import Calls, Up, children, create, get, put, sync
from .session import Session
from .stake import Stake


class Reading:
    """The sessions, paths and listings that all operations need."""

    def __init__(self, link: Link, namespace: str) -> None:
        self.link = link
        self.space = f"{link.address.chroot}/{nodes.ROOT}/{nodes.component(namespace)}"
        self._last: tuple[list[str], View] = ([], view((), 0))

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        session = yield from self._session(None)
        root = self._root(session)
        _, buckets = yield Calls(session, (sync(self.space), children(root)))
        if isinstance(buckets, NoNodeError):
            return [], None
        listings = yield Calls(session, [children(f"{root}/{each}") for each in buckets if each[0] != "n"])
        found = (nodes.own_name(each) for listing in listings if not isinstance(listing, Exception) for each in listing)
        names = sorted(name for name in found if name is not None and name > after and name.startswith(prefix))[:count]
        holdings = yield from self._holdings(session, names, listing=True)
        return holdings, names[-1] if len(names) == count else None

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        session = yield from self._session(None)
        return (yield from self._holdings(session, [name]))

    def read_note(self, name: str) -> Steps[str | None]:
        session = yield from self._session(None)
        path = self._note(session, name)
        _, found = yield Calls(session, (sync(path), get(path)))
        if isinstance(found, NoNodeError):
            return None
        try:
            return str(found[0] or b"", "utf-8")
        except UnicodeDecodeError as error:
            raise StoreNotReady(f"the note of {name!r} is damaged, or of another program: delete {path}") from error

    def _session(self, ttl: float | None) -> Steps[Session]:
        """A session that is up and knows the namespace; for leases of ``ttl`` seconds, or any."""
        session = self.link.any_session() if ttl is None else self.link.session(ttl)
        yield from self._up(session)
        if ttl is not None:
            self.link.check_length(session, ttl)
        while session.root is None:
            [found] = yield Calls(session, (get(self.space),))
            if isinstance(found, NoNodeError):
                yield from self._make(session, self.space, str(nodes.FORMAT).encode())
                continue
            data, stat = found
            if data != str(nodes.FORMAT).encode():
                raise StoreNotReady(
                    f"{self.space} was created by a newer leasehold, or by another program: upgrade leasehold, or use "
                    "another chroot"
                )
            session.base, session.root = stat.ctime * 1000, f"{self.space}/{stat.ctime}"
        return session

    def _up(self, session: Session) -> Steps[None]:
        if not session.up:
            yield Up(session)

    def _root(self, session: Session) -> str:
        """Where the namespace is. A session that was lost since it was asked for does not know that any more."""
        root = session.root
        if root is None:
            raise StoreUnavailable(f"{self.link.where}: the session was lost")
        return root

    def _parent(self, session: Session, name: str) -> str:
        return f"{self._root(session)}/{nodes.bucket(name)}/{nodes.component(name)}"

    def _note(self, session: Session, name: str) -> str:
        return f"{self._root(session)}/n{nodes.bucket(name)}/{nodes.component(name)}"

    def _make(self, session: Session, path: str, data: bytes = b"") -> Steps[bool]:
        """Create a node, and what is above it where that is missing. False: the namespace is gone, find it anew."""
        while True:
            [made] = yield Calls(session, (create(path, data),))
            if not isinstance(made, NoNodeError):
                return True
            above = path.rpartition("/")[0]
            if above == self.space:
                session.root = None
                return False
            if not (yield from self._make(session, above)):
                return False

    def _clock(self, session: Session) -> Steps[None]:
        """To be done before the leader's clock is used: only a write tells what it is, and this ``Locks`` may not have
        made one yet. Whoever may not write has to believe in its own."""
        if self.link.sample is not None:
            return
        try:
            [stat] = yield Calls(session, (put(self._root(session), b"", -1),))
        except StoreNotReady as error:
            if not isinstance(error.__cause__, NoAuthError):
                raise
            self.link.saw(self.link.leader_ms())
        else:
            if not isinstance(stat, NoNodeError):  # else there is nothing yet that it could matter to
                self.link.saw(stat.mtime)

    def _standing(self, there: list[str]) -> View:
        """How a name stands by a listing. Many who wait for it look one after the other, and mostly see the same."""
        listed, look = self._last
        if listed != there:
            look = view(there, self.link.leader_ms())
            if not (look.resting or look.over):  # else it also depends on the time
                self._last = there, look
        return look

    def _view(self, session: Session, parent: str) -> Steps[View]:
        yield from self._clock(session)
        _, there = yield Calls(session, (sync(parent), children(parent)))
        return view([] if isinstance(there, NoNodeError) else there, self.link.leader_ms())

    def _holdings(self, session: Session, names: Iterable[str], listing: bool = False) -> Steps[list[Holding]]:
        """A ``listing`` passes over what it cannot read, and says so: one bad node does not hide the rest."""
        names = list(names)
        yield from self._clock(session)
        _, *listings = yield Calls(
            session, [sync(self.space), *(children(self._parent(session, name)) for name in names)]
        )
        wanted = []
        for name, there in zip(names, listings, strict=True):
            look = view([] if isinstance(there, NoNodeError) else there, self.link.leader_ms())
            wanted += [(name, node, len(look.waiting)) for node in look.taken()]
        found = yield Calls(session, [get(f"{self._parent(session, name)}/{node.child}") for name, node, _ in wanted])
        seen = []
        for (name, node, waiters), each in zip(wanted, found, strict=True):
            if isinstance(each, Exception):
                continue
            try:
                if (holding := self._seen(session, name, node, each, waiters)) is not None:
                    seen.append(holding)
            except StoreNotReady as error:
                if not listing:
                    raise
                log(WARNING, "a bad node is skipped: %s", error, event="bad_record", name=name)
        return seen

    def _seen(self, session: Session, name: str, node: Any, found: tuple[bytes, Any], waiters: int) -> Holding | None:
        """None: it was let in, and has not claimed yet, so that it has no token."""
        record, stat = nodes.decode(found[0], name), found[1]
        if record.state == nodes.WAITING:
            return None
        attempt = node.attempt if isinstance(node, Node) else ""
        now = self.link.leader_ms()
        token, since = self._token(session, record, stat), record.since or stat.mtime
        seen = record.seen(name, attempt, token, since, now, waiters)
        if isinstance(node, Rest):
            return seen._replace(expires_in=(node.until - now) / 1000)
        left = seen.expires_in - max(0, now - stat.mtime) / 1000
        if node.limit > 1:
            return seen._replace(expires_in=max(0.001, left))
        # A lock's renewal writes nothing. One that is kept, or is there after the term that was written, was renewed at
        # most a ttl ago: it ends no later than a ttl from now.
        return seen if record.kept or left <= 0 else seen._replace(expires_in=left)

    def _token(self, session: Session, record: nodes.Record, stat: Any) -> int:
        return record.token or session.base + stat.mzxid

    def _saw(self, stake: Stake, stat: Any) -> None:
        stake.token = stake.session.base + stat.mzxid
        stake.since = stat.mtime
        self.link.saw(stat.mtime)
