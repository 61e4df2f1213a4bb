"""MongoDB passes the conformance suite: a standalone server and replica sets of one and three members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import pymongo
import pytest

from leasehold.testing import Held, StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from servers.mongodb import MongoDB, MongoReplicaSet
from servers.plugin import shared

pytestmark = pytest.mark.server


class MongoProbe:
    def __init__(self, url: str) -> None:
        self.client: pymongo.MongoClient[Any] = pymongo.MongoClient(url)
        self.leases = self.client.get_default_database()["leasehold"]

    def names(self, namespace: str) -> Sequence[str]:
        return [found["_id"]["name"] for found in self.leases.find({"_id.ns": namespace}, {"_id": 1})]

    def holders(self, namespace: str, name: str) -> Sequence[Held]:
        found = self._find(namespace, name)
        now = self._now()
        return [Held(one["owner"], one["token"], (one["expires"] - now).total_seconds()) for one in found["holders"]]

    def waiters(self, namespace: str, name: str) -> int:
        found = self._find(namespace, name)
        now = self._now()
        return sum(one["expires"] > now for one in found["queue"])

    def age(self, namespace: str, name: str) -> None:
        due = {"_id": {"ns": namespace, "name": name}, "purge": {"$exists": True}}
        self.leases.delete_one(due)  # what the TTL index does, once a minute

    def _find(self, namespace: str, name: str) -> Any:
        return self.leases.find_one({"_id": {"ns": namespace, "name": name}}) or {"holders": [], "queue": []}

    def _now(self) -> datetime:
        now: datetime = self.client.admin.command("hello")["localTime"]
        return now


@pytest.fixture(scope="module")
def mongodb_three_members() -> Iterator[MongoReplicaSet]:
    yield from shared(MongoReplicaSet)


@pytest.fixture(scope="module", params=["mongodb_server", "mongodb_replica_set", "mongodb_three_members"])
def deployment(request: pytest.FixtureRequest) -> Iterator[tuple[Any, MongoProbe]]:
    server = request.getfixturevalue(request.param)
    probe = MongoProbe(server.url)
    yield server, probe
    probe.client.close()


@pytest.fixture
def store(deployment: tuple[Any, MongoProbe]) -> StoreUnderTest:
    server, probe = deployment
    return StoreUnderTest(
        "mongodb",
        server.url,
        probe,
        ttl=1.0,
        rounds=200,
        count_files=False,
        wipe=probe.leases.drop,
        restart=server.restart if isinstance(server, MongoDB) else None,  # of replica sets: test_mongo_failover
        age=probe.age,
    )
