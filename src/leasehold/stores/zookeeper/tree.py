"""Where things are in ZooKeeper, and how they are read: after a ``sync``, if nothing was written before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kazoo.exceptions import NoAuthError, NoNodeError

from ...core.log import WARNING, log
from ...core.protocol import Busy, Holding, Steps
from ...errors import StoreNotReady, StoreUnavailable
from . import nodes
from .nodes import AttemptNode, Rest, View, view
from .requests import Calls, ClientCall, Up, children, create, get, put, sync
from .sessions import SessionPool, ZooKeeperSession
from .stakes import Stake, Stakes


class ZooKeeperTree:
    """The nodes of one namespace."""

    def __init__(self, pool: SessionPool, stakes: Stakes, namespace: str) -> None:
        self.pool, self.stakes = pool, stakes
        self.space = f"{pool.address.chroot}/{nodes.ROOT}/{nodes.component(namespace)}"
        self._last: tuple[list[str], View] = ([], view((), 0))

    # Sessions and paths.

    def session(self, ttl: float | None) -> Steps[ZooKeeperSession]:
        """A session that is up and knows the namespace; for leases of ``ttl`` seconds, or any."""
        session = self.pool.any_session() if ttl is None else self.pool.session(ttl)
        yield from up(session)
        if ttl is not None:
            self.pool.check_length(session, ttl)
        while session.root is None:
            [found] = yield Calls(session, (get(self.space),))
            if isinstance(found, NoNodeError):
                yield from self.make(session, self.space, str(nodes.FORMAT).encode())
                continue
            data, stat = found
            if data != str(nodes.FORMAT).encode():
                raise StoreNotReady(
                    f"{self.space} was created by a newer leasehold, or by another program: upgrade leasehold, or use "
                    "another chroot"
                )
            session.base, session.root = stat.ctime * 1000, f"{self.space}/{stat.ctime}"
        return session

    def root(self, session: ZooKeeperSession) -> str:
        """Where the namespace is. A session that was lost since it was asked for does not know that any more."""
        root = session.root
        if root is None:
            raise StoreUnavailable(f"{self.pool.where}: the session was lost")
        return root

    def parent(self, session: ZooKeeperSession, name: str) -> str:
        return f"{self.root(session)}/{nodes.bucket(name)}/{nodes.component(name)}"

    def note(self, session: ZooKeeperSession, name: str) -> str:
        return f"{self.root(session)}/n{nodes.bucket(name)}/{nodes.component(name)}"

    def make(self, session: ZooKeeperSession, path: str, data: bytes = b"") -> Steps[bool]:
        """Create a node, and what is above it where that is missing. False: the namespace is gone, find it anew."""
        while True:
            [made] = yield Calls(session, (create(path, data),))
            if not isinstance(made, NoNodeError):
                return True
            above = path.rpartition("/")[0]
            if above == self.space:
                session.root = None
                return False
            if not (yield from self.make(session, above)):
                return False

    def clock(self, session: ZooKeeperSession) -> Steps[None]:
        """To be done before the leader's clock is used: only a write tells what it is, and this ``Locks`` may not have
        made one yet. Whoever may not write has to believe in its own."""
        if self.stakes.clock_sample is not None:
            return
        try:
            [stat] = yield Calls(session, (put(self.root(session), b"", -1),))
        except StoreNotReady as error:
            if not isinstance(error.__cause__, NoAuthError):
                raise
            self.stakes.saw(self.stakes.leader_ms())
        else:
            if not isinstance(stat, Exception):
                self.stakes.saw(stat.mtime)

    # Listings.

    def standing(self, there: Any) -> View:
        """How a name stands by this listing. The same one again, as it is asked for in vain, is not read again."""
        there = [] if isinstance(there, NoNodeError) else there
        listed, look = self._last
        if listed != there:
            look = view(there, self.stakes.leader_ms())
            if not (look.resting or look.over):  # else it also depends on the time
                self._last = there, look
        return look

    def view(self, session: ZooKeeperSession, parent: str) -> Steps[View]:
        yield from self.clock(session)
        _, there = yield Calls(session, (sync(parent), children(parent)))
        return view([] if isinstance(there, NoNodeError) else there, self.stakes.leader_ms())

    def views(self, session: ZooKeeperSession, names: Sequence[str]) -> Steps[list[View]]:
        yield from self.clock(session)
        calls = [sync(self.space), *(children(self.parent(session, name)) for name in names)]
        _, *listings = yield Calls(session, calls)
        now = self.stakes.leader_ms()
        return [view([] if isinstance(there, NoNodeError) else there, now) for there in listings]

    def busy(
        self, session: ZooKeeperSession, name: str, look: View, place: int | None, calls: Sequence[ClientCall] = ()
    ) -> Steps[tuple[Busy, list[Any]]]:
        """Who is in the way. The answers to the calls, which are sent along."""
        first = look.taken()[:1]
        paths = [f"{self.parent(session, name)}/{node.child}" for node in first]
        answers = yield Calls(session, (*calls, *map(get, paths)))
        holder = None
        if first and not isinstance(found := answers.pop(), Exception):
            holder = self.seen(session, name, first[0], found, len(look.waiting))
        return Busy(holder, place, self.rests_for(look)), answers

    def rests_for(self, look: View) -> float | None:
        """Seconds until something that rests is over, if anything does."""
        if not look.resting:
            return None
        return max(0.001, (min(rest.until for rest in look.resting) - self.stakes.leader_ms()) / 1000)

    # Holdings.

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        session = yield from self.session(None)
        root = self.root(session)
        _, buckets = yield Calls(session, (sync(self.space), children(root)))
        if isinstance(buckets, NoNodeError):
            return [], None
        listings = yield Calls(session, [children(f"{root}/{each}") for each in buckets if each[0] != "n"])
        found = (nodes.own_name(each) for listing in listings if not isinstance(listing, Exception) for each in listing)
        names = sorted(name for name in found if name is not None and name > after and name.startswith(prefix))[:count]
        holdings = yield from self.holdings(session, names, listing=True)
        return holdings, names[-1] if len(names) == count else None

    def holdings(self, session: ZooKeeperSession, names: Iterable[str], listing: bool = False) -> Steps[list[Holding]]:
        """A ``listing`` passes over what it cannot read, and says so: one bad node does not hide the rest."""
        names = list(names)
        looks = yield from self.views(session, names)
        wanted = [
            (name, node, len(look.waiting)) for name, look in zip(names, looks, strict=True) for node in look.taken()
        ]
        found = yield Calls(session, [get(f"{self.parent(session, name)}/{node.child}") for name, node, _ in wanted])
        seen = []
        for (name, node, waiters), each in zip(wanted, found, strict=True):
            if isinstance(each, Exception):
                continue
            try:
                if (holding := self.seen(session, name, node, each, waiters)) is not None:
                    seen.append(holding)
            except StoreNotReady as error:
                if not listing:
                    raise
                log(WARNING, "a bad node is skipped: %s", error, event="bad_record", name=name)
        return seen

    def seen(
        self, session: ZooKeeperSession, name: str, node: AttemptNode | Rest, found: tuple[bytes, Any], waiters: int
    ) -> Holding | None:
        """None: it was let in, and has not claimed yet, so that it has no token."""
        record, stat = nodes.decode(found[0], name), found[1]
        if record.state == nodes.WAITING:
            return None
        attempt = node.attempt if isinstance(node, AttemptNode) else ""
        now = self.stakes.leader_ms()
        token, since = token_of(session, record, stat), record.since or stat.mtime
        seen = record.seen(name, attempt, token, since, now, waiters)
        if isinstance(node, Rest):
            return seen._replace(expires_in=(node.until - now) / 1000)
        left = seen.expires_in - max(0, now - stat.mtime) / 1000
        if node.limit > 1:
            return seen._replace(expires_in=max(0.001, left))
        # A lock's renewal writes nothing. One that is kept, or is there after the term that was written, was renewed at
        # most a ttl ago: it ends no later than a ttl from now.
        return seen if record.kept or left <= 0 else seen._replace(expires_in=left)

    def saw(self, stake: Stake, stat: Any) -> None:
        """It holds by the write that has brought this stat."""
        stake.token = stake.session.base + stat.mzxid
        stake.since = stat.mtime
        self.stakes.saw(stat.mtime)


def up(session: ZooKeeperSession) -> Steps[None]:
    if not session.up:
        yield Up(session)


def token_of(session: ZooKeeperSession, record: nodes.Record, stat: Any) -> int:
    return record.token or session.base + int(stat.mzxid)
