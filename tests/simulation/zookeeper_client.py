"""kazoo's client, as its documentation has it, of the model server: what a store asks it for, and no more."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Protocol

from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, SessionExpiredError
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent

from leasehold.core import clock

from .zookeeper_server import ModelServer, ModelSession, Operation

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Between two tries to connect."""


class Wire(Protocol):
    """What carries messages and lets time pass. Of one connection each direction keeps its order."""

    def up(self, connection: object, do: Callable[[], object]) -> None:
        """Do this at the server."""

    def down(self, connection: object, do: Callable[[], object]) -> None:
        """Do this in the client's process, in a thread of its own."""

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        """Do this in the client's process later."""

    def heard(self, session: ModelSession) -> None:
        """The server has a sign of life of the session."""


class Connection:
    """One TCP connection: the client's end and the server's may be closed at different times."""

    def __init__(self) -> None:
        self.open = self.served = True
        self.pending: deque[tuple[Operation, Any, Any]] = deque()


class ModelClient:
    """Keeps a session with the model server, and begins another when that has expired."""

    def __init__(self, server: ModelServer, wire: Wire, timeout: float, handler: Any) -> None:
        self.server, self.wire, self.timeout, self.handler = server, wire, timeout, handler
        self.chroot, self.hosts, self.use_ssl, self.default_acl = "", [("model", 2181)], False, None
        self.client_state, self.state = KeeperState.CLOSED, KazooState.LOST
        self.listeners: list[Callable[[str], object]] = []
        self.stopped = True
        self.connection: Connection | None = None
        self.session: int | None = None
        self.pause = FIRST_PAUSE
        self.watchers: dict[str, defaultdict[str, set[Any]]] = {"data": defaultdict(set), "child": defaultdict(set)}

    # What kazoo's client has.

    @property
    def connected(self) -> bool:
        return self.state == KazooState.CONNECTED

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        return (self.session, b"") if self.connected and self.session is not None else None

    def add_listener(self, listener: Callable[[str], object]) -> None:
        self.listeners.append(listener)

    def start_async(self) -> None:
        self.stopped = False
        self.wire.after(0.0, self._connect)

    def stop(self) -> None:
        if self.stopped:
            return
        self.stopped = True
        closed = threading.Event()
        if self.connection is not None and self.connected and self.session is not None and not self.handler.abandoned:
            connection, session = self.connection, self.server.sessions.get(self.session)

            def end() -> None:
                if connection.served and session is not None:
                    self.server.end(session)
                closed.set()

            self.wire.up(connection, end)
            getattr(self.wire, "wait", lambda event: None)(closed)
        self._lose_connection(tell=False)
        self._lost(KeeperState.CLOSED)

    def close(self) -> None:
        pass

    def create_async(
        self,
        path: str,
        value: bytes = b"",
        acl: Any = None,
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
        include_data: bool = False,
    ) -> Any:
        assert not makepath
        read = (lambda answer: answer) if include_data else (lambda answer: answer[0])
        return self._send(Operation("create", path, value, ephemeral=ephemeral, sequence=sequence), read)

    def delete_async(self, path: str, version: int = -1) -> Any:
        return self._send(Operation("delete", path, version=version))

    def set_async(self, path: str, value: bytes, version: int = -1) -> Any:
        return self._send(Operation("set", path, value, version))

    def get_async(self, path: str, watch: Any = None) -> Any:
        return self._send(Operation("get", path, watch=watch is not None), watch=("data", watch))

    def exists_async(self, path: str, watch: Any = None) -> Any:
        return self._send(Operation("exists", path, watch=watch is not None), watch=("data", watch))

    def get_children_async(self, path: str, watch: Any = None, include_data: bool = False) -> Any:
        read = (lambda answer: answer) if include_data else (lambda answer: answer[0])
        return self._send(Operation("children", path, watch=watch is not None), read, ("child", watch))

    def sync_async(self, path: str) -> Any:
        return self._send(Operation("sync", path))

    def transaction(self) -> ModelTransaction:
        return ModelTransaction(self)

    # Connections.

    def drop(self) -> None:
        """The connection is broken here: what is on its way may still arrive there."""
        self._lose_connection()
        if not self.stopped:
            self._again()

    def _connect(self) -> None:
        if self.stopped or self.handler.abandoned:
            return
        self.connection = connection = Connection()
        self.handler.connection = ModelSocket(self, connection)
        wanted, session = self.timeout, self.session

        def ask() -> None:
            if not connection.served:
                return
            found = self.server.sessions.get(session) if session is not None else self.server.open(wanted)
            if found is not None:
                if found.connection is not None:
                    found.connection.served = False
                    self.server.cut_off(found)
                found.connection = connection
                found.tell = lambda kind, path: self.wire.down(connection, lambda: self._event(connection, kind, path))
                self.wire.heard(found)
            self.wire.down(connection, lambda: self._let_in(connection, found))

        self.wire.up(connection, ask)
        self.wire.after(wanted, lambda: self.drop() if connection is self.connection and not self.connected else None)

    def _let_in(self, connection: Connection, session: ModelSession | None) -> None:
        if not connection.open or self.stopped:
            return
        self.pause = FIRST_PAUSE
        if session is None:
            self._lost(KeeperState.EXPIRED_SESSION)
            self.session = None
            self._lose_connection()
            self.wire.after(0.0, self._connect)
            return
        self.session, self.handler.agreed = session.number, session.told
        self.handler.heard = clock.now()
        self.client_state = KeeperState.CONNECTED
        self._told(KazooState.CONNECTED)

    def _again(self) -> None:
        self.wire.after(self.pause, self._connect)
        self.pause = min(LONGEST_PAUSE, 2 * self.pause)

    def _lose_connection(self, tell: bool = True) -> None:
        connection, self.connection = self.connection, None
        if connection is None:
            return
        connection.open = False

        def gone() -> None:
            connection.served = False
            for session in list(self.server.sessions.values()):
                if session.connection is connection:
                    self.server.cut_off(session)

        self.wire.up(connection, gone)
        for _, result, _ in connection.pending:
            result.set_exception(ConnectionLoss())
        connection.pending.clear()
        if tell and self.connected:
            self.client_state = KeeperState.CONNECTING
            self._told(KazooState.SUSPENDED)
            self._reset_watchers()

    def _reset_watchers(self) -> None:
        watchers = [watch for kind in self.watchers.values() for there in kind.values() for watch in there]
        self._clear_watchers()
        for watch in watchers:
            watch(WatchedEvent(EventType.NONE, self.client_state, None))

    def _clear_watchers(self) -> None:
        self.watchers = {"data": defaultdict(set), "child": defaultdict(set)}

    def _lost(self, state: str) -> None:
        self.client_state = state
        self._told(KazooState.LOST)
        if self.connection is not None:
            for _, result, _ in self.connection.pending:
                result.set_exception(SessionExpiredError())
            self.connection.pending.clear()
        self._reset_watchers()

    def _told(self, state: str) -> None:
        if state != self.state:
            self.state = state
            for each in list(self.listeners):
                each(state)

    # Requests.

    def _send(
        self,
        operation: Operation,
        read: Callable[[Any], Any] = lambda answer: answer,
        watch: tuple[str, Any] = ("", None),
    ) -> Any:
        result = self.handler.async_result()
        connection = self.connection
        if connection is None or not self.connected or self.stopped:
            closed = self.client_state == KeeperState.CLOSED
            result.set_exception(ConnectionClosedError("closed") if closed else ConnectionLoss())
            return result
        connection.pending.append((operation, result, (read, watch)))

        def arrive() -> None:
            session = next((each for each in self.server.sessions.values() if each.connection is connection), None)
            if not connection.served or session is None:
                return
            self.wire.heard(session)
            answer = self.server.perform(session, operation)
            self.wire.down(connection, lambda: self._answered(connection, answer))

        self.wire.up(connection, arrive)
        return result

    def _answered(self, connection: Connection, answer: Any) -> None:
        if not connection.open or not connection.pending:
            return
        self.handler.heard = clock.now()
        operation, result, (read, (kind, watch)) = connection.pending.popleft()
        missing = isinstance(answer, Exception)
        if watch is not None and (not missing or operation.what == "exists"):
            self.watchers[kind][operation.path].add(watch)
        if missing and operation.what == "exists":
            result.set(None)
        elif missing:
            result.set_exception(answer)
        else:
            result.set(read(answer))

    def _event(self, connection: Connection, kind: str, path: str) -> None:
        if not connection.open:
            return
        called: list[Any] = []
        if kind == EventType.CHILD:
            called += self.watchers["child"].pop(path, ())
        else:
            called += self.watchers["data"].pop(path, ())
            if kind == EventType.DELETED:
                called += self.watchers["child"].pop(path, ())
        for watch in called:
            watch(WatchedEvent(kind, self.client_state, path))


class ModelTransaction:
    """See ``kazoo.client.TransactionRequest``."""

    def __init__(self, client: ModelClient) -> None:
        self.client = client
        self.parts: list[Operation] = []

    def create(
        self, path: str, value: bytes = b"", acl: Any = None, ephemeral: bool = False, sequence: bool = False
    ) -> None:
        self.parts.append(Operation("create", path, value, ephemeral=ephemeral, sequence=sequence))

    def delete(self, path: str, version: int = -1) -> None:
        self.parts.append(Operation("delete", path, version=version))

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        self.parts.append(Operation("set", path, value, version))

    def check(self, path: str, version: int) -> None:
        self.parts.append(Operation("check", path, version=version))

    def commit_async(self) -> Any:
        made = [part.what == "create" for part in self.parts]

        def read(answers: list[Any]) -> list[Any]:
            whole = not any(isinstance(each, Exception) for each in answers)
            return [each[0] if whole and new else each for each, new in zip(answers, made, strict=True)]

        return self.client._send(Operation("multi", parts=tuple(self.parts)), read)


class ModelSocket:
    """What is shut down to break a connection."""

    def __init__(self, client: ModelClient, connection: Connection) -> None:
        self._client, self._connection = client, connection

    def shutdown(self, how: int) -> None:
        client = self._client
        if client.connection is self._connection:
            client.wire.after(0.0, lambda: client.drop() if client.connection is self._connection else None)
