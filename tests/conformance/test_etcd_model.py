"""The model of etcd that the simulation uses passes the conformance suite, as the real server does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest

from leasehold.testing import Held, StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from simulation.etcd_model import Stored
from simulation.etcd_serving import LOOK, Served

LATE = 2 * LOOK


class ModelProbe:
    """Looks into the model itself."""

    def __init__(self, server: Served) -> None:
        self._server = server

    def keys(self, start: str) -> list[Stored]:
        key = start.encode()
        found: list[Stored] = self._server.do(lambda model: model.under(key, key + b"\xff"))
        return found

    def names(self, namespace: str) -> Sequence[str]:
        space = _space(namespace)
        keys = [each.key.decode()[len(space) :] for each in self.keys(space)]
        return [key[2:].split("\0")[0] for key in keys if key[:2] in ("h/", "w/")]

    def holders(self, namespace: str, name: str) -> Sequence[Held]:
        keys = self.keys(f"{_space(namespace)}h/{name}\0")
        epoch = int(self.keys(_space(namespace) + "epoch")[0].value) if keys else 0
        ends = self._server.do(
            lambda model: {number: lease.expires - model.now() for number, lease in model.leases.items()}
        )
        # What has run out is there until the model looks for that: it has so much more at most.
        return [Held(json.loads(each.value)[2], epoch + each.create, ends.get(each.lease, 0.0) + LATE) for each in keys]

    def waiters(self, namespace: str, name: str) -> int:
        return len(self.keys(f"{_space(namespace)}w/{name}\0"))

    def age(self, namespace: str, name: str) -> None:
        """Nothing is kept of a name that is free."""

    def wipe(self) -> None:
        self._server.do(lambda model: model.call(b"/Txn", [_DELETE_ALL]))

    def leases(self) -> Sequence[str]:
        found: list[str] = self._server.do(lambda model: [str(each) for each in model.leases])
        return found


def _space(namespace: str) -> str:
    return "leasehold/" + namespace.replace("%", "%25").replace("/", "%2F") + "/"


def _text(field: int, value: bytes) -> bytes:
    return bytes((field << 3 | 2, len(value))) + value


_DELETE_ALL = _text(2, _text(3, _text(1, b"leasehold/") + _text(2, b"leasehold0")))


@pytest.fixture(scope="session")
def etcd_model() -> Iterator[Served]:
    with Served() as server:
        yield server


@pytest.fixture
def store(etcd_model: Served) -> StoreUnderTest:
    probe = ModelProbe(etcd_model)
    return StoreUnderTest(
        "etcd's model",
        etcd_model.url,
        probe,
        ttl=1.0,
        late=1.5,
        slack=1.0,
        rounds=300,
        wipe=probe.wipe,
        age=probe.age,
        leftovers=probe.leases,
        joint=True,
    )
