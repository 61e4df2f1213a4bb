"""A small model of a ZooKeeper server: a tree, sessions that expire, ephemeral and sequential nodes, versions,
transactions, watches. Pure: whoever drives it tells the time and carries the messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import EventType, ZnodeStat

CHANGES = ("create", "delete", "set", "check")


class Operation(NamedTuple):
    """What a client asks for. ``what`` is create, delete, set, check, get, exists, children, sync or multi."""

    what: str
    path: str = ""
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False
    sequence: bool = False
    watch: bool = False
    parts: Sequence[Operation] = ()


class ModelNode:
    """One node of the tree."""

    def __init__(self, data: bytes, zxid: int, now: int, owner: int) -> None:
        self.data, self.owner = data, owner
        self.created = self.written = self.children_changed = zxid
        self.ctime = self.mtime = now
        self.version = 0
        self.born = 0
        """How many children it has had: the number of the next sequential one."""
        self.children: set[str] = set()

    def stat(self) -> ZnodeStat:
        changes = 2 * self.born - len(self.children)
        head = (self.created, self.written, self.ctime, self.mtime, self.version, changes, 0, self.owner)
        return ZnodeStat(*head, len(self.data), len(self.children), self.children_changed)


class ModelSession:
    """What the server knows of one session. ``tell`` sends a watch event down its connection; ``told`` is how long its
    client was told that it is."""

    def __init__(self, number: int, timeout: float) -> None:
        self.number, self.timeout, self.told = number, timeout, timeout
        self.heard = 0.0
        self.connection: Any = None
        self.tell: Callable[[str, str], None] = lambda kind, path: None


class ModelServer:
    """``wall_ms`` is the wall clock that nodes are stamped with; ``shortest`` and ``longest`` bound sessions."""

    def __init__(self, wall_ms: Callable[[], int], shortest: float = 1.0, longest: float = 120.0) -> None:
        self.wall_ms, self.shortest, self.longest = wall_ms, shortest, longest
        self.number = 0
        self.after: list[Callable[[ModelSession | None, Operation, Any], None]] = []
        """Called after each operation, and after the end of a session."""
        self.before: list[Callable[[ModelSession, Operation], None]] = []
        self.forget()

    def forget(self) -> None:
        """Lose everything, sessions too."""
        self.zxid = 0
        self.tree = {"/": ModelNode(b"", 0, self.wall_ms(), 0)}
        self.sessions: dict[int, ModelSession] = {}
        self.data_watches: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self.child_watches: defaultdict[str, dict[int, None]] = defaultdict(dict)

    # Sessions.

    def open(self, timeout: float) -> ModelSession:
        self.number += 1
        session = ModelSession(self.number, min(self.longest, max(self.shortest, timeout)))
        self.sessions[session.number] = session
        return session

    def cut_off(self, session: ModelSession) -> None:
        """Its connection has ended, and its watches with it."""
        session.connection = None
        session.tell = lambda kind, path: None
        for watches in (self.data_watches, self.child_watches):
            for there in watches.values():
                there.pop(session.number, None)

    def end(self, session: ModelSession) -> None:
        """It was closed, or has expired: its nodes go in one step."""
        self.cut_off(session)
        self.sessions.pop(session.number, None)
        mine = sorted(path for path, node in self.tree.items() if node.owner == session.number)
        self.zxid += 1
        for path in mine:
            self._remove(path)
        for path in mine:
            self._tell_gone(path)
        for each in self.after:
            each(session, Operation("end"), None)

    # Operations.

    def perform(self, session: ModelSession, operation: Operation) -> Any:
        """The answer, or the error that is one."""
        for look in self.before:
            look(session, operation)
        try:
            answer = self._perform(session, operation)
        except KazooException as error:
            answer = error
        for each in self.after:
            each(session, operation, answer)
        return answer

    def _perform(self, session: ModelSession, operation: Operation) -> Any:
        match operation.what:
            case "sync":
                return operation.path
            case "multi":
                return self._multi(session, operation.parts)
            case "get" | "exists" | "children":
                return self._read(session, operation)
        self.zxid += 1
        answer, tell = self._change(session, operation)
        tell()
        return answer

    def _read(self, session: ModelSession, operation: Operation) -> Any:
        path, node = operation.path, self.tree.get(operation.path)
        if operation.watch and (node is not None or operation.what == "exists"):
            watches = self.child_watches if operation.what == "children" else self.data_watches
            watches[path][session.number] = None
        if node is None:
            raise NoNodeError
        if operation.what == "get":
            return node.data, node.stat()
        return node.stat() if operation.what == "exists" else (sorted(node.children), node.stat())

    def _multi(self, session: ModelSession, parts: Sequence[Operation]) -> list[Any]:
        """All, or none: then each has an error."""
        self.zxid += 1
        before = {path: _copy(node) for path, node in self._touched(parts)}
        answers: list[Any] = []
        told: list[Callable[[], None]] = []
        for number, part in enumerate(parts):
            try:
                answer, tell = self._change(session, part)
            except KazooException as error:
                for made, _ in (each for each in answers if type(each) is tuple):
                    self.tree.pop(made, None)
                self.tree.update(before)
                rest = len(parts) - number - 1
                return [*(RolledBackError() for _ in answers), error, *(RuntimeInconsistency() for _ in range(rest))]
            answers.append(answer)
            told.append(tell)
        for tell in told:
            tell()
        return answers

    def _touched(self, parts: Sequence[Operation]) -> Iterator[tuple[str, ModelNode]]:
        for path in {place for part in parts for place in (part.path, _parent(part.path))}:
            if path in self.tree:
                yield path, self.tree[path]

    def _change(self, session: ModelSession, operation: Operation) -> tuple[Any, Callable[[], None]]:
        """Carry it out; its answer, and what tells those who watch."""
        path = operation.path
        if operation.what == "create":
            return self._create(session, operation)
        node = self.tree.get(path)
        if node is None:
            raise NoNodeError
        if operation.version not in (-1, node.version):
            raise BadVersionError
        if operation.what == "check":
            return True, lambda: None
        if operation.what == "set":
            node.data, node.version = operation.data, node.version + 1
            node.written, node.mtime = self.zxid, self.wall_ms()
            return node.stat(), lambda: self._tell(self.data_watches.pop(path, {}), EventType.CHANGED, path)
        if node.children:
            raise NotEmptyError
        self._remove(path)
        return True, lambda: self._tell_gone(path)

    def _create(self, session: ModelSession, operation: Operation) -> tuple[Any, Callable[[], None]]:
        path, above = operation.path, self.tree.get(_parent(operation.path))
        if above is None:
            raise NoNodeError
        if operation.sequence:
            path += f"{above.born:010d}"
        if path in self.tree:
            raise NodeExistsError
        owner = session.number if operation.ephemeral else 0
        self.tree[path] = made = ModelNode(operation.data, self.zxid, self.wall_ms(), owner)
        above.children.add(path.rpartition("/")[2])
        above.born += 1
        above.children_changed = self.zxid

        def tell() -> None:
            self._tell(self.data_watches.pop(path, {}), EventType.CREATED, path)
            self._tell(self.child_watches.pop(_parent(path), {}), EventType.CHILD, _parent(path))

        return (path, made.stat()), tell

    def _remove(self, path: str) -> None:
        del self.tree[path]
        above = self.tree[_parent(path)]
        above.children.discard(path.rpartition("/")[2])
        above.children_changed = self.zxid

    def _tell_gone(self, path: str) -> None:
        who = {**self.data_watches.pop(path, {}), **self.child_watches.pop(path, {})}
        self._tell(who, EventType.DELETED, path)
        self._tell(self.child_watches.pop(_parent(path), {}), EventType.CHILD, _parent(path))

    def _tell(self, who: dict[int, None], kind: str, path: str) -> None:
        for number in who:
            if number in self.sessions:
                self.sessions[number].tell(kind, path)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _copy(node: ModelNode) -> ModelNode:
    copy = ModelNode(b"", 0, 0, 0)
    copy.__dict__.update({**node.__dict__, "children": set(node.children)})
    return copy
