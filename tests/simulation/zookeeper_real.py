"""The model server in real time, in this process: so it passes the suite that real servers pass."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from leasehold.core.protocol import Opened
from leasehold.stores.common.reentry import inside
from leasehold.stores.zookeeper import open_url
from leasehold.testing import Held

from .zookeeper_client import ModelClient
from .zookeeper_server import ModelServer, ModelSession

TICK = 0.1


class Clockwork:
    """One thread that does everything in its turn: the server's work, and that of the clients' own threads."""

    def __init__(self) -> None:
        self.server = ModelServer(lambda: time.time_ns() // 1_000_000)
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="model-zookeeper", daemon=True)
        self._thread.start()
        self.after(TICK, self._tick)

    def up(self, connection: object, do: Callable[[], object]) -> None:
        self.after(0.0, do)

    def down(self, connection: object, do: Callable[[], object]) -> None:
        do()

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), do))
            self._changed.notify()

    def heard(self, session: ModelSession) -> None:
        session.heard = time.monotonic()

    def wait(self, event: threading.Event) -> None:
        if threading.current_thread() is not self._thread:
            event.wait(5)

    def client(self, hosts: str, timeout: float, handler: Any, **options: Any) -> ModelClient:
        return ModelClient(self.server, self, timeout, handler)

    def wipe(self) -> None:
        done = threading.Event()
        self.after(0.0, lambda: (self._wipe(), done.set()))
        done.wait(5)

    def _wipe(self) -> None:
        """As if somebody had deleted everything of ours."""
        mine = sorted((path for path in self.server.tree if path.startswith("/leasehold")), reverse=True)
        for path in mine:
            self.server.zxid += 1
            self.server._remove(path)
            self.server._tell_gone(path)

    def close(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _tick(self) -> None:
        now = time.monotonic()
        for session in list(self.server.sessions.values()):
            if session.heard and now > session.heard + session.timeout:
                self.server.end(session)
        self.after(TICK, self._tick)

    def _work(self) -> None:
        with inside():
            while True:
                with self._changed:
                    while not self._ended and (not self._due or self._due[0][0] > time.monotonic()):
                        left = self._due[0][0] - time.monotonic() if self._due else None
                        self._changed.wait(left)
                    if self._ended:
                        return
                    do = heapq.heappop(self._due)[2]
                do()


def open_model(url: str, namespace: str) -> Opened:
    """The store of ZooKeeper. Its clients are the model's: see ``test_zookeeper_model.py``."""
    return open_url("zookeeper://model:2181", namespace)


class ModelProbe:
    """Looks into the tree behind the store's back, by rules of its own."""

    def __init__(self, server: ModelServer) -> None:
        from conformance.zookeeper_probe import ZooKeeperProbe

        self._probe: Any = ZooKeeperProbe.__new__(ZooKeeperProbe)
        self._probe.client = _Reader(server)

    def names(self, namespace: str) -> Any:
        return self._probe.names(namespace)

    def holders(self, namespace: str, name: str) -> list[Held]:
        found: list[Held] = self._probe.holders(namespace, name)
        return found

    def waiters(self, namespace: str, name: str) -> int:
        found: int = self._probe.waiters(namespace, name)
        return found

    def age(self, namespace: str, name: str) -> None:
        self._probe.age(namespace, name)


class _Reader:
    """What the probe asks kazoo's client."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server

    def sync(self, path: str) -> None:
        pass

    def get_children(self, path: str) -> list[str]:
        from kazoo.exceptions import NoNodeError

        node = self.server.tree.get(path)
        if node is None:
            raise NoNodeError
        return sorted(node.children)

    def get(self, path: str) -> Any:
        from kazoo.exceptions import NoNodeError

        node = self.server.tree.get(path)
        if node is None:
            raise NoNodeError
        return node.data, node.stat()

    def delete(self, path: str) -> None:
        self.server.zxid += 1
        self.server._remove(path)
        self.server._tell_gone(path)
