"""The sessions of one ``Locks``: what an ephemeral node lives by.

The length of a session is agreed on when it begins, so there is one for each class of ttl. kazoo's client keeps it,
begins another after a loss, and gives up for good only when it is refused: then another takes its place.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState

from ...core import clock, timing
from ...core.log import DEBUG, WARNING, log
from ...errors import StoreError, StoreNotReady, StoreUnavailable
from ...runtime.thread_start import start_thread
from .compat import SessionHandler
from .errors import is_about_tls
from .requests import delete
from .url import ZooKeeperAddress

LEAVING = 0.5
"""How long it may take to remove nodes from a session that is left to itself."""
REPLACED_AFTER = 1.0
"""How old a session that is over has to be for another to take its place: a wrong password is not tried more often."""
CLOSING = 1.0
RETRY = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
quiet = logging.getLogger("leasehold.zookeeper")
quiet.setLevel(logging.ERROR)  # kazoo logs whole requests, passwords too, and every reconnect


def length(ttl: float) -> float:
    """How long a session has to last for leases of ``ttl`` seconds, see docs/design/09-zookeeper.md."""
    return 1.15 * ttl + 1.0


def longest_tick(ttl: float) -> float:
    """The tickTime in seconds up to which such a session outlives every lease of ``ttl`` seconds: the leader may note
    the last sign of life half a tick late, and what the length exceeds ttl and a tenth by has to cover that."""
    return 2 * (0.045 * ttl + 0.95)


class SessionObserver(Protocol):
    """Who has to know what becomes of a session. Called by kazoo's connection thread; must not block."""

    def back(self, session: ZooKeeperSession) -> None:
        """It is connected, perhaps again, and perhaps it is a new one."""

    def cut_off(self, session: ZooKeeperSession) -> None:
        """Its connection is lost, and every watch with it."""

    def lost(self, session: ZooKeeperSession) -> None:
        """It is over, and all that lived by it."""


class ZooKeeperSession:
    """One session, and kazoo's client that keeps it."""

    def __init__(self, address: ZooKeeperAddress, timeout: float, observer: SessionObserver) -> None:
        self.where, self.timeout = address.where, timeout
        self.id: int | None = None
        self.base = 0
        """The epoch that tokens are counted from, and (``root``) the node of the namespace's leases, once known."""
        self.root: str | None = None
        self.connections = 0
        """How many it has had: with each its watches have ended."""
        self.refused: StoreError | None = None
        self.began = clock.now()
        self.to_watch: deque[tuple[float, Any]] = deque()
        """Leases whose nodes are to be watched, and from when on."""
        self._observer = observer
        self._mutex = threading.Lock()
        self._waiting: list[Any] = []
        self._failures = 0
        self.failure: OSError | None = None
        """Why the last connection was not made; None while there is one."""
        self.handler = SessionHandler(self._failed, self._ended)
        self.client = KazooClient(
            hosts=address.hosts,
            timeout=timeout,
            handler=self.handler,
            connection_retry=RETRY,
            logger=quiet,
            **address.options,
        )
        self.client.add_listener(self._changed)
        try:
            self.client.start_async()
        except RuntimeError:  # no thread is to be had
            self.client.close()
            raise

    @property
    def agreed(self) -> float | None:
        return self.handler.agreed

    @property
    def up(self) -> bool:
        return bool(self.client.connected)

    @property
    def over(self) -> bool:
        """Whether it will never be up again."""
        return self.refused is not None

    def lasts(self, ttl: float) -> bool:
        """Whether the server has agreed to a length that is enough for leases of ``ttl`` seconds."""
        return self.agreed is not None and self.agreed + 0.002 >= length(ttl)

    def when_up(self) -> Any:
        """Set once the session is connected, or will never be."""
        result = self.handler.async_result()
        with self._mutex:
            if not self.up and self.refused is None:
                self._waiting.append(result)
                return result
        if self.refused is not None:
            result.set_exception(self.refused)
        else:
            result.set()
        return result

    def leave(self, remove: Sequence[str]) -> None:
        """End without ending the session: its nodes are there until the server has not heard of it for its length.
        Those that nobody needs are removed first."""
        removed = [delete(path)(self.client) for path in remove if self.up]
        if removed:
            removed[-1].wait(LEAVING)  # they are answered in order
        self.handler.abandon()
        self.close()

    def close(self) -> None:
        try:
            self.client.stop()
            self.client.close()
        except Exception as error:  # it is closing: what was ours is gone by then, or will be with the session
            log(DEBUG, "a session of ZooKeeper did not close cleanly: %s", error)

    # Called by kazoo's connection thread.

    def _ended(self) -> None:
        """kazoo tries no more: the server has refused us, or hung up while it was to let us in, which kazoo takes for
        the same; or something went wrong that kazoo does not expect."""
        self.refused = self.refused or StoreUnavailable(f"{self.where}: the connection has ended")
        self._tell_waiting(self.refused)
        self._observer.lost(self)

    def _failed(self, error: OSError) -> None:
        """A connection could not be made. kazoo goes on trying; but what is wrong with TLS stays so until somebody
        mends it: when all servers have failed by that, whoever waits is told."""
        self.failure = OSError(*error.args)  # not itself: it would keep kazoo's socket from being closed
        self._failures = self._failures + 1 if self.client.use_ssl and is_about_tls(error) else 0
        if self._failures >= len(self.client.hosts):
            refused = StoreNotReady(
                f"{self.where}: TLS connection failed ({error.strerror or error}): check that the server's "
                "certificate is trusted, and that the files in the URL exist"
            )
            refused.__cause__ = type(error)(*error.args)
            self._tell_waiting(refused)

    def _tell_waiting(self, error: StoreError | None) -> None:
        with self._mutex:
            waiting, self._waiting = self._waiting, []
        for result in waiting:
            if error is None:
                result.set()
            else:
                result.set_exception(error)

    def _changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.connections += 1
            self._failures = 0
            self.failure = None
            fresh = self.client.client_id[0]
            if fresh != self.id:
                self.id, self.root = fresh, None
            self._tell_waiting(None)
            self._observer.back(self)
        elif state == KazooState.SUSPENDED:
            self._observer.cut_off(self)
        elif state == KazooState.LOST:
            if self.client.client_state == "AUTH_FAILED":
                self.refused = StoreNotReady(f"{self.where}: authentication failed: check the credentials")
                self._tell_waiting(self.refused)
            self.id = None
            self._observer.lost(self)


class SessionPool:
    """The sessions of one ``Locks``, by their length."""

    def __init__(self, address: ZooKeeperAddress) -> None:
        self.address, self.where = address, address.where
        self.observer: SessionObserver
        """Set by whoever has something at stake."""
        self.before_first: Callable[[], object] = lambda: None
        """Called before a session is made. It may raise RuntimeError: no thread can be started."""
        self.closed = False
        self._warned: set[float] = set()
        self.reset()

    def reset(self) -> None:
        """In a forked child: the sessions are the parent's. What is never touched again does them no harm."""
        _left_to_the_parent.append(getattr(self, "sessions", None))
        self.sessions: list[ZooKeeperSession] = []
        self._mutex = threading.Lock()

    def session(self, ttl: float) -> ZooKeeperSession:
        """A session that is long enough for leases of ``ttl`` seconds, and not much longer. It may not be up yet."""
        needed = length(ttl)
        with self._mutex:
            if self.closed:
                raise StoreUnavailable(f"{self.where}: this Locks is closed")
            self._remove_over()
            for session in self.sessions:
                if needed <= session.timeout <= 1.25 * needed:
                    return session
            try:
                self.before_first()
                session = ZooKeeperSession(self.address, needed, self.observer)
            except RuntimeError as error:
                raise StoreUnavailable(f"{self.where}: no thread can be started for a session: {error}") from error
            self.sessions.append(session)
            return session

    def any_session(self) -> ZooKeeperSession:
        with self._mutex:
            self._remove_over()
            best = max(self.sessions, key=lambda session: (session.up, not session.over), default=None)
        return best or self.session(timing.DEFAULT_TTL / 3)

    def _remove_over(self) -> None:
        """Make room for new sessions in the place of those that never come back. Nothing lives by them any more."""
        for session in [session for session in self.sessions if session.over]:
            if clock.now() >= session.began + REPLACED_AFTER:
                with contextlib.suppress(RuntimeError):  # no thread to be had: another time
                    start_thread("leasehold-zookeeper-end", session.close)  # it waits for kazoo's thread
                    self.sessions.remove(session)

    def by_id(self, number: int) -> ZooKeeperSession | None:
        return next((session for session in list(self.sessions) if session.id == number), None)

    def check_length(self, session: ZooKeeperSession, ttl: float) -> None:
        """The server has a say in how long a session is: refuse what it does not honour."""
        agreed = session.agreed
        if agreed is None:
            raise StoreNotReady("this version of kazoo does not show how long a session is: install another version")
        if not session.lasts(ttl):
            raise StoreNotReady(
                f"{self.where}: a ttl of {ttl:g} s needs a session of {length(ttl):g} s, and the server allows "
                f"{agreed:g} s: use a ttl of {max(0.0, (agreed - 1.0) / 1.15):.3g} s or less, "
                "or raise its maxSessionTimeout"
            )
        if agreed > session.timeout + 0.002 and ttl not in self._warned:
            self._warned.add(ttl)
            log(
                WARNING,
                "a ttl of %g s is shorter than the sessions of %s, which last at least %g s (minSessionTimeout): a "
                "killed holder is replaced when its session ends",
                ttl,
                self.where,
                agreed,
                event="short_ttl",
            )

    def close(self, leave: Callable[[ZooKeeperSession], Sequence[str] | None]) -> None:
        """End all sessions; those for which ``leave`` returns what to remove from them are left to themselves."""
        with self._mutex:
            self.closed = True
            sessions, self.sessions = self.sessions, []
        closing = []
        for session in sessions:
            remove = leave(session)
            end: tuple[Any, ...] = (session.close,) if remove is None else (session.leave, remove)
            try:
                closing.append(start_thread("leasehold-zookeeper-end", *end))
            except RuntimeError:  # there is none to be had, as when the interpreter exits
                end[0](*end[1:])
        ends = clock.now() + CLOSING
        for each in closing:  # one that is about to connect to a server that hangs may take longer
            each.join(max(0.0, ends - clock.now()))


_left_to_the_parent: list[Any] = []
