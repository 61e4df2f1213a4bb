"""What the store asks of its drivers: to wait for a session, and to make calls in it.

A call is a function of kazoo's client that sends one request and returns the answer to come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .sessions import ZooKeeperSession

LARGEST = 400_000
"""Bytes in one transaction. A server ends the connection over one that is larger than its jute.maxbuffer, 1 MB."""

ClientCall = Callable[[Any], Any]
Watcher = Callable[..., None] | None


class Up(NamedTuple):
    """Wait until the session is connected. Answered with None."""

    session: ZooKeeperSession


class Calls(NamedTuple):
    """Send these together. Answered with a list: of each call its result, or the error if it concerns the node."""

    session: ZooKeeperSession
    calls: Sequence[ClientCall]


class Apart(NamedTuple):
    """Send each in a session of its own, of which some may be ill. Answered with a list: of each its result, or the
    error. One that has no answer after ``within`` seconds is given up."""

    calls: Sequence[tuple[ZooKeeperSession, ClientCall]]
    within: float


class Part(NamedTuple):
    """One change of a transaction, by the name that kazoo's transaction has for it."""

    method: str
    args: tuple[Any, ...]
    options: dict[str, Any] = {}  # noqa: RUF012


def create(path: str, record: bytes, *, mine: bool = False) -> ClientCall:
    """``mine``: ephemeral, and numbered by the server. The result is the path and the stat."""
    return lambda client: client.create_async(path, record, None, mine, mine, include_data=True)


def children(path: str, watch: Watcher = None) -> ClientCall:
    return lambda client: client.get_children_async(path, watch)


def listing(path: str) -> ClientCall:
    """The children, and the stat of their parent."""
    return lambda client: client.get_children_async(path, include_data=True)


def exists(path: str, watch: Watcher = None) -> ClientCall:
    return lambda client: client.exists_async(path, watch)


def sync(path: str) -> ClientCall:
    """What is read after it is no older than this moment, also from a follower that lags."""
    return lambda client: client.sync_async(path)


def get(path: str, watch: Watcher = None) -> ClientCall:
    return lambda client: client.get_async(path, watch)


def put(path: str, record: bytes, version: int) -> ClientCall:
    return lambda client: client.set_async(path, record, version)


def delete(path: str, version: int = -1) -> ClientCall:
    return lambda client: client.delete_async(path, version)


def multi(parts: Sequence[Part]) -> ClientCall:
    """All or none: the result is a list, with errors in it if it was none."""

    def send(client: Any) -> Any:
        transaction = client.transaction()
        for part in parts:
            getattr(transaction, part.method)(*part.args, **part.options)
        return transaction.commit_async()

    return send
