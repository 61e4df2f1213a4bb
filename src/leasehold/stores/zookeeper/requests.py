"""What the store asks of its drivers: to wait for a session, and to make calls in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core import clock

if TYPE_CHECKING:
    from .session import Session

LARGEST = 400_000
"""Bytes in one transaction. A server ends the connection over one that is larger than its jute.maxbuffer, 1 MB."""


class Up(NamedTuple):
    """Wait until the session is connected. Answered with None."""

    session: Session


class Calls(NamedTuple):
    """Send these together. Answered with a list: of each call its result, or the error if it concerns the node."""

    session: Session
    calls: Sequence[Call | Multi]


class Each(NamedTuple):
    """Several at once, in sessions that may not all be well. Answered with a list: of each what it would be answered
    with, or the StoreError that came of it.

    One that hangs is given up after ``within`` seconds; or, where there are others, after half of the time that is
    left, for what they have to do next."""

    requests: Sequence[Up | Calls]
    within: float

    def ends(self, ends: float) -> float:
        now = clock.now()
        return now + min(self.within, (ends - now) / min(2, len(self.requests)))


class Call(NamedTuple):
    """One call of kazoo's asynchronous API."""

    method: str
    args: tuple[Any, ...]
    options: dict[str, Any] = {}  # noqa: RUF012


def create(path: str, record: bytes, *, mine: bool = False) -> Call:
    """``mine``: ephemeral, and numbered by the server."""
    return Call("create", (path, record, mine))


def children(path: str, watch: Callable[..., None] | None = None) -> Call:
    return Call("get_children_async", (path, watch))


def listing(path: str) -> Call:
    """The children, and the stat of their parent."""
    return Call("get_children_async", (path, None, True))


def exists(path: str, watch: Callable[..., None] | None = None) -> Call:
    return Call("exists_async", (path, watch))


def sync(path: str) -> Call:
    """What is read after it is no older than this moment, also from a follower that lags."""
    return Call("sync_async", (path,))


def get(path: str, watch: Callable[..., None] | None = None) -> Call:
    return Call("get_async", (path, watch))


def watch_all(paths: Sequence[str]) -> Call:
    """Watch all of these, for one change and for being deleted: one request. Of those that are gone, the link hears at
    once."""
    return Call("watch_all", (paths,))


def put(path: str, record: bytes, version: int) -> Call:
    return Call("set_async", (path, record, version))


def delete(path: str, version: int = -1) -> Call:
    return Call("delete_async", (path, version))


class Multi(NamedTuple):
    """All or none, as a call: its result is a list, with errors in it if it was none."""

    parts: Sequence[Call]
