"""One session of ZooKeeper."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Exists, int_struct, long_struct, write_string
from kazoo.protocol.states import KazooState
from kazoo.security import OPEN_ACL_UNSAFE

from ...core import clock
from ...core.log import DEBUG, log
from ...errors import StoreError, StoreNotReady, StoreUnavailable
from ..common.reentry import inside
from ..common.sockets import hang_up
from .errors import is_about_tls
from .requests import Call, Multi, delete

if TYPE_CHECKING:
    from .link import Link
    from .stake import Stake

LEAVING = 0.5
"""How long it may take to remove nodes from a session that is left to itself."""
quiet = logging.getLogger("leasehold.zookeeper")
quiet.setLevel(logging.ERROR)  # kazoo logs whole requests, passwords too, and every reconnect


def length(ttl: float) -> float:
    """How long a session has to last for leases of ``ttl`` seconds, see docs/design/09-zookeeper.md."""
    return 1.15 * ttl + 1.0


def longest_tick(ttl: float) -> float:
    """The tickTime in seconds up to which such a session outlives every lease of ``ttl`` seconds: the leader may note
    the last sign of life half a tick late, and what the length exceeds ttl and a tenth by has to cover that."""
    return 2 * (0.045 * ttl + 0.95)


class _SetWatches:
    """A request that kazoo does not have. Java's client sets all its watches by it on a new connection, so that every
    server knows it.

    Here it sets two for each node: the one that reading it sets, and the one that a listing of its children does. That
    tells that the node itself is deleted, too, and ours have no children: so it tells that alone, and is still there
    when the other has told of a change. What is gone already is told at once, before the answer."""

    type = 101
    _SINCE = 2**63 - 1
    """The zxid after which other changes would be told at once, too."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytes:
        paths = int_struct.pack(len(self._paths)) + b"".join(map(write_string, self._paths))
        none = int_struct.pack(0)  # that are to be told of their creation
        return bytes(long_struct.pack(self._SINCE) + paths + none + paths)

    @classmethod
    def deserialize(cls, answer: bytes, at: int) -> None:
        return None


class _Told(defaultdict[str, set[Callable[..., None]]]):
    """Whom kazoo tells what becomes of a node: always the link, which knows who wants to hear of it. kazoo notes that
    when the request that sets the watch is answered, and what is told at once comes before."""

    def __init__(self, event: Callable[..., None]) -> None:
        self._always = {event}  # the same for all: kazoo would make a set for each path
        super().__init__(lambda: self._always)

    def pop(self, path: str, default: Any = None) -> Any:
        super().pop(path, default)
        return self._always


class Session:
    """One session of ours, and kazoo's client that keeps it. After a loss the client begins a new one by itself,
    unless its thread has ended: then the session is ``over``, and the link makes another in its place."""

    def __init__(self, link: Link, timeout: float) -> None:
        self.link = link
        self.timeout = timeout
        self.id: int | None = None
        self.agreed: float | None = None
        self.base = 0
        self.root: str | None = None
        self.touched = self.heard = clock.now()
        self.touching = False
        self.connections = 0
        """How many it has had: with each its watches have ended."""
        self.unwatched: deque[tuple[float, Stake]] = deque()
        self.looks = 0
        self.trying: Any = None
        self.refused: StoreError | None = None
        self.began = clock.now()
        retry = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
        self.client = KazooClient(
            hosts=link.address.hosts,
            timeout=timeout,
            connection_retry=retry,
            logger=quiet,
            **link.address.options,
        )
        self.waiting: list[Any] = []
        self.mutex = threading.Lock()
        self._failures = 0
        self._listen()
        self.client.add_listener(self._changed)
        try:
            self.client.start_async()
        except RuntimeError:  # a thread was refused: end those that were not
            with contextlib.suppress(RuntimeError):
                self.client.handler.stop()
            raise

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
        """An AsyncResult of kazoo's that is set once the session is connected."""
        result = self.client.handler.async_result()
        with self.mutex:
            if not self.up and self.refused is None:
                self.waiting.append(result)
                return result
        if self.refused is not None:
            result.set_exception(self.refused)
        else:
            result.set(None)
        return result

    def submit(self, call: Call | Multi) -> Any:
        if isinstance(call, Multi):
            transaction = self.client.transaction()
            for part in call.parts:
                getattr(transaction, part.method)(*part.args, **part.options)
            return transaction.commit_async()
        if call.method == "create":
            path, record, mine = call.args
            # Not create_async: that takes the answer through another thread, which is half of what an acquire takes.
            acl = self.client.default_acl or OPEN_ACL_UNSAFE
            return self.client._create_async_inner(path, record, acl, 3 if mine else 0, mine, include_data=True)
        if call.method == "exists_async" and call.args[1] is not None:
            # Not exists_async: with each watch that keeps a copy of the path.
            path, watch = call.args
            result = self.client.handler.async_result()
            self.client._call(Exists(self.client.chroot + path, watch), result)
            return result
        if call.method == "watch_all":
            result = self.client.handler.async_result()
            self.client._call(_SetWatches([self.client.chroot + path for path in call.args[0]]), result)
            return result
        return getattr(self.client, call.method)(*call.args, **call.options)

    def drop_connection(self) -> None:
        """It does not answer. kazoo would send on and never notice: requests count as its pings."""
        hang_up(getattr(self.client._connection, "_socket", None))

    def leave(self, remove: Sequence[str]) -> None:
        """End without ending the session: its nodes are there until the server has not heard of it for its length.
        Those that nobody needs are removed first."""
        try:
            removed = [self.submit(delete(path)) for path in remove if self.up]
            if removed:
                removed[-1].wait(LEAVING)  # they are answered in order
            self.client._stopped.set()
            self.drop_connection()
            self.client._safe_close()
            self.client.close()
        except Exception as error:
            log(DEBUG, "a session of ZooKeeper was not left cleanly: %s", error)

    def close(self) -> None:
        try:
            self.client.stop()
            self.client.close()
        except Exception as error:  # it is closing: what was ours is gone by then, or will be with the session
            log(DEBUG, "a session of ZooKeeper did not close cleanly: %s", error)

    def _listen(self) -> None:
        """kazoo reads how long a session the server agrees to, and when it answers, and keeps that to itself; and that
        its thread has ended."""
        connection = self.client._connection
        invoke = connection._invoke

        def listening(timeout: float, request: Any, xid: int | None = None) -> Any:
            answer = invoke(timeout, request, xid)
            if type(request).__name__ == "Connect":
                self.agreed = answer[0].time_out / 1000
            return answer

        connection._invoke = listening
        read = connection._read_socket

        def reading(timeout: float) -> Any:
            answer = read(timeout)
            self.heard = clock.now()
            return answer

        connection._read_socket = reading
        connect = self.client.handler.create_connection

        def connecting(*args: Any, **options: Any) -> Any:
            try:
                made = connect(*args, **options)
            except OSError as error:
                self._failed(error)
                raise
            self._failures = 0
            return made

        self.client.handler.create_connection = connecting
        loop = connection.zk_loop

        def looping() -> None:
            try:
                with inside():
                    loop()
            finally:
                self._ended()

        connection.zk_loop = looping

    def _ended(self) -> None:
        """kazoo tries no more: the server has refused us, or hung up while it was to let us in, which kazoo takes for
        the same; or something went wrong that kazoo does not expect."""
        self.refused = self.refused or StoreUnavailable(f"{self.link.where}: the connection has ended")
        self._refuse(self.refused)
        self.link.lost(self)

    def _failed(self, error: OSError) -> None:
        """A connection could not be made. kazoo goes on trying; but what is wrong with TLS stays so until somebody
        mends it: when all servers have failed by that, whoever waits is told."""
        self._failures = self._failures + 1 if self.client.use_ssl and is_about_tls(error) else 0
        if self._failures >= len(self.client.hosts):
            refused = StoreNotReady(
                f"{self.link.where}: TLS connection failed ({error.strerror or error}): check that the server's "
                "certificate is trusted, and that the files in the URL exist"
            )
            refused.__cause__ = type(error)(*error.args)  # not itself: it would keep kazoo's socket from being closed
            self._refuse(refused)

    def _refuse(self, error: StoreError) -> None:
        with self.mutex:
            waiting, self.waiting = self.waiting, []
        for result in waiting:
            result.set_exception(error)

    def _changed(self, state: str) -> None:
        """Called by kazoo's connection thread; must not block."""
        if state == KazooState.CONNECTED:
            self.connections += 1
            self.client._data_watchers = _Told(self.link.watching.event)
            fresh = self.client.client_id[0]
            if fresh != self.id:
                self.id, self.root = fresh, None
            self.touched, self.touching = clock.now(), False
            with self.mutex:
                waiting, self.waiting = self.waiting, []
            for result in waiting:
                result.set(None)
            self.link.back(self)
            self.link.wake()
        elif state == KazooState.SUSPENDED:
            self.link.cut_off()
        elif state == KazooState.LOST:
            if self.client.client_state == "AUTH_FAILED":
                self.refused = StoreNotReady(f"{self.link.where}: authentication failed: check the credentials")
                self._refuse(self.refused)
            self.id = None
            self.link.lost(self)
