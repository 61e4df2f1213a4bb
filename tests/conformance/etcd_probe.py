"""Looks into etcd behind leasehold's back, through its JSON gateway."""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

from leasehold.testing import Held
from servers.base import NotReady
from servers.etcd import ask

START = "leasehold/"


class EtcdProbe:
    def __init__(self, ports: Callable[[], Sequence[int]]) -> None:
        self._ports = ports

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Of the first member that answers."""
        failed: Exception | None = None
        for port in self._ports():
            try:
                return ask(port, path, body)
            except (OSError, NotReady) as error:
                failed = error
        raise failed or AssertionError

    def keys(self, start: str) -> list[dict[str, Any]]:
        found = self.ask("kv/range", {"key": _b64(start), "range_end": _b64(start[:-1] + chr(ord(start[-1]) + 1))})
        return found.get("kvs", [])

    def names(self, namespace: str) -> Sequence[str]:
        space = _space(namespace)
        keys = [_text(each["key"])[len(space) :] for each in self.keys(space)]
        return [key[2:].split("\0")[0] for key in keys if key[:2] in ("h/", "w/")]

    def holders(self, namespace: str, name: str) -> Sequence[Held]:
        found = []
        keys = self.keys(f"{_space(namespace)}h/{name}\0")
        epoch = int(_text(self.keys(_space(namespace) + "epoch")[0]["value"])) if keys else 0
        for each in keys:
            lease = self.ask("lease/timetolive", {"ID": each["lease"]})
            # In whole seconds, rounded down. What is asked of a store is that nobody trusts a lease for longer than it
            # is there, so this is the most that it may have.
            left = int(lease.get("TTL", 0)) + 1.0
            owner = json.loads(_text(each["value"]))[2]
            found.append(Held(owner, epoch + int(each["create_revision"]), left))
        return found

    def waiters(self, namespace: str, name: str) -> int:
        return len(self.keys(f"{_space(namespace)}w/{name}\0"))

    def age(self, namespace: str, name: str) -> None:
        """Nothing is kept of a name that is free."""

    def wipe(self) -> None:
        self.ask("kv/deleterange", {"key": _b64(START), "range_end": _b64("leasehold0")})

    def leases(self) -> Sequence[str]:
        return [each["ID"] for each in self.ask("lease/leases", {}).get("leases", [])]


def _space(namespace: str) -> str:
    return START + namespace.replace("%", "%25").replace("/", "%2F") + "/"


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _text(value: str) -> str:
    return base64.b64decode(value).decode()
