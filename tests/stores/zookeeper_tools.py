"""What the tests of ZooKeeper share: a look into its tree from outside, and Locks behind a relay."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import leasehold
from leasehold.testing.handles import eventually
from servers.zookeeper import ZooKeeper, end_session
from servers.zookeeper_relay import ZooKeeperRelay


class Seen(NamedTuple):
    """One attempt's node as it stands."""

    path: str
    record: dict[str, Any]
    stat: Any

    @property
    def state(self) -> str:
        return str(self.record["state"])


class Tree:
    """The nodes of one namespace. ``client`` is kazoo's, of a session of its own."""

    def __init__(self, client: Any, namespace: str) -> None:
        self.client, self.namespace = client, namespace

    @property
    def root(self) -> str:
        [epoch] = self.client.get_children(f"/leasehold/{self.namespace}")
        return f"/leasehold/{self.namespace}/{epoch}"

    def parent(self, name: str) -> str:
        """The node of a name."""
        for bucket in self.client.get_children(self.root):
            if not bucket.startswith("n"):
                for each in self._children(f"{self.root}/{bucket}"):
                    if unquote(each) == name:
                        return f"{self.root}/{bucket}/{each}"
        raise LookupError(name)

    def line(self, name: str) -> list[Seen]:
        """All that hold or wait, in order."""
        self.client.sync("/")
        try:
            parent = self.parent(name)
        except LookupError:
            return []
        found = []
        for child in sorted(self._children(parent), key=lambda child: child[-10:]):
            if child.startswith("rest."):
                continue
            try:
                data, stat = self.client.get(f"{parent}/{child}")
            except NoNodeError:
                continue
            found.append(Seen(f"{parent}/{child}", json.loads(data), stat))
        return found

    def holder(self, name: str) -> Seen:
        return self.line(name)[0]

    def states(self, name: str) -> list[str]:
        return [each.state for each in self.line(name)]

    def _children(self, path: str) -> list[str]:
        try:
            return list(self.client.get_children(path))
        except NoNodeError:
            return []


def queued(locks: Any, name: str, count: int) -> None:
    """Wait until so many wait for a name."""
    eventually(lambda: (seen := locks.inspect(name)) is not None and seen.waiters == count, 60)


class Waiting(threading.Thread):
    """Acquires a name in a thread; releases it when told to."""

    def __init__(self, locks: leasehold.Locks, name: str = "x", **options: Any) -> None:
        super().__init__(daemon=True)
        self.locks, self.name_, self.options = locks, name, options
        self.lease: leasehold.Lease | None = None
        self.error: Exception | None = None
        self.served = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self.lease = self.locks.lock(self.name_, **self.options).acquire()
        except Exception as error:
            self.error = error
        self.served.set()

    def taken(self, seconds: float = 60) -> leasehold.Lease:
        assert self.served.wait(seconds), "it was not served"
        assert self.lease is not None, self.error
        return self.lease


@contextmanager
def relayed(server: Any, namespace: str, **options: Any) -> Iterator[tuple[ZooKeeperRelay, leasehold.Locks]]:
    """A ``Locks`` whose requests go through a relay."""
    with ZooKeeperRelay(server.port) as relay:
        url = f"zookeeper://127.0.0.1:{relay.port}"
        with leasehold.connect(url, namespace=namespace, **options) as locks:
            yield relay, locks


def expire(server: ZooKeeper, *sessions: int) -> None:
    """End sessions behind their clients' back, as the server does when it has not heard of them."""
    for session in sessions:
        eventually(lambda: _ended(server, session), 60)  # noqa: B023


def _ended(server: ZooKeeper, session: int) -> bool:
    try:
        return end_session(server.port, session, password(session), host=server.host)
    except OSError:
        return False


def password(session: int) -> bytes:
    """A session's password, as every server makes it from the session's number: 16 bytes of Java's generator."""
    state, found = (session ^ 0xB3415C00 ^ 0x5DEECE66D) & (2**48 - 1), b""
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & (2**48 - 1)
        found += (state >> 16 & 0xFFFFFFFF).to_bytes(4, "little")
    return found


Connect = Callable[..., leasehold.Locks]
__all__ = ["Connect", "KazooClient", "Seen", "Tree", "Waiting", "expire", "queued", "relayed"]
