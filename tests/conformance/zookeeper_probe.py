"""Looks into ZooKeeper behind leasehold's back: the nodes as they are, read by rules of its own."""

import json
import select
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError
from kazoo.handlers.threading import SequentialThreadingHandler

from leasehold.testing import Held


class WithoutSelectors(SequentialThreadingHandler):
    """kazoo's own makes a descriptor for each wait, which would look like a leak of the store's."""

    def select(self, *args: Any) -> Any:
        return select.select(*args)


class ZooKeeperProbe:
    def __init__(self, hosts: str) -> None:
        self.client = KazooClient(hosts, timeout=20, handler=WithoutSelectors())
        self.client.start(60)

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    def wipe(self) -> None:
        while True:
            try:
                return self.client.delete("/leasehold", recursive=True)
            except NotEmptyError:  # somebody has come meanwhile
                continue

    def paths(self, namespace: str) -> Sequence[str]:
        self.client.sync("/")
        spaces = [f"/leasehold/{space}" for space in self._children("/leasehold") if unquote(space) == namespace]
        return [
            f"{space}/{epoch}/{bucket}/{name}"
            for space in spaces
            for epoch in self._children(space)
            for bucket in self._children(f"{space}/{epoch}")
            if not bucket.startswith("n")
            for name in self._children(f"{space}/{epoch}/{bucket}")
        ]

    def names(self, namespace: str) -> Sequence[str]:
        return [unquote(path.rpartition("/")[2]) for path in self.paths(namespace)]

    def holders(self, namespace: str, name: str) -> Sequence[Held]:
        return self._look(namespace, name)[0]

    def waiters(self, namespace: str, name: str) -> int:
        return self._look(namespace, name)[1]

    def age(self, namespace: str, name: str) -> None:
        """As if a day had gone by: tidying up removes the node of a name that nobody uses."""
        for path in self.paths(namespace):
            if unquote(path.rpartition("/")[2]) == name:
                self.client.delete(path)

    def _look(self, namespace: str, name: str) -> tuple[list[Held], int]:
        """Who comes first holds, as many as fit; then come those who wait. The epoch is the parent's ctime."""
        held: list[Held] = []
        waiting = 0
        for path in self.paths(namespace):
            if unquote(path.rpartition("/")[2]) != name:
                continue
            epoch = int(path.split("/")[3]) * 1000
            children = [child for child in self._children(path) if not child.startswith("rest.")]
            used = 0
            for child in sorted(children, key=lambda child: child.rpartition(".")[2]):
                limit, weight = map(int, child.split(".")[2:4])
                used += weight
                if used > limit:
                    waiting += 1
                elif (found := self._get(f"{path}/{child}")) is not None:
                    fields, stat = found
                    token = fields["token"] or epoch + stat.mzxid
                    held.append(Held(fields["owner"], token, fields["ttl"] / 1e6))
                else:
                    used -= weight
        return held, waiting

    def _children(self, path: str) -> list[str]:
        try:
            return list(self.client.get_children(path))
        except NoNodeError:
            return []

    def _get(self, path: str) -> tuple[dict[str, Any], Any] | None:
        try:
            data, stat = self.client.get(path)
        except NoNodeError:
            return None
        return json.loads(data), stat
