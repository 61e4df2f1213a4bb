"""E7: tokens go on rising over a release and over the purge by the TTL index, where a deleted counter starts again."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pymongo
import pytest
from mongo_listeners import opened

import leasehold
from leasehold.stores.mongodb import index as mongo_index
from leasehold.stores.mongodb.index import INDEX
from servers.mongodb import MongoDB

pytestmark = pytest.mark.server


class Purging(MongoDB):
    """Looks for what has expired every second, not every minute."""

    def command(self) -> list[str]:
        return [*super().command(), "--setParameter", "ttlMonitorSleepSecs=1"]


class AsTheDocument:
    """DistributedLock.MongoDB as document E describes it: token + 1 at acquire, the record deleted at release."""

    def __init__(self, collection: Any) -> None:
        self.collection = collection

    def acquire(self, name: str, seconds: float = 30) -> tuple[str, int]:
        mine = uuid.uuid4().hex
        free = {"$lte": [{"$ifNull": ["$expiresAt", "$$NOW"]}, "$$NOW"]}
        found = self.collection.find_one_and_update(
            {"_id": name},
            [
                {
                    "$set": {
                        "lockId": {"$cond": [free, mine, "$lockId"]},
                        "fencingToken": {
                            "$cond": [free, {"$add": [{"$ifNull": ["$fencingToken", 0]}, 1]}, "$fencingToken"]
                        },
                        "expiresAt": {"$cond": [free, {"$add": ["$$NOW", seconds * 1000]}, "$expiresAt"]},
                    }
                }
            ],
            upsert=True,
            return_document=pymongo.ReturnDocument.AFTER,
        )
        assert found["lockId"] == mine
        return mine, found["fencingToken"]

    def release(self, name: str, mine: str) -> None:
        self.collection.delete_one({"_id": name, "lockId": mine})


def test_the_sequence_of_the_document(start_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A takes and releases, B takes and releases; C after a purge. The document promises 1, 2, …"""
    monkeypatch.setattr(mongo_index, "INDEX_LIMIT", 60.0)
    monkeypatch.setattr(mongo_index, "indexed", set())  # another server may have had this port
    server = start_server(Purging)
    with pymongo.MongoClient[Any](server.url) as client, leasehold.connect(server.url) as locks:
        theirs = AsTheDocument(client.get_default_database()["distributed.locks"])
        document = []
        for _ in range(2):
            mine, token = theirs.acquire("myLock")
            document.append(token)
            theirs.release("myLock", mine)
        assert document == [1, 1]  # the control: B's token is no greater than A's

        leases = client.get_default_database()["leasehold"]
        ours = []
        for _ in range(2):
            with locks.lock("myLock") as lease:
                ours.append(lease.token)
        with opened(server.url) as (store, driver):
            driver.run(store.tidy(), 60.0)  # the keeper tries it for half a second, and then an hour later
        assert INDEX in leases.index_information()
        leases.update_one({"_id.name": "myLock"}, [{"$set": {"purge": "$$NOW"}}])  # as if a day had passed
        end = time.monotonic() + 60
        while leases.find_one({"_id.name": "myLock"}) is not None:
            assert time.monotonic() < end, "the TTL index has not purged the record"
            time.sleep(0.1)
        with locks.lock("myLock") as lease:
            ours.append(lease.token)
        assert ours == sorted(set(ours))
        assert len(ours) == 3


def test_an_expired_record_is_taken_over_although_the_purge_has_not_come(mongodb_server: Any) -> None:  # A3
    with leasehold.connect(mongodb_server.url, namespace="a3") as locks:
        first = locks.lock("x", ttl=1, renew=False).acquire()
        second = locks.lock("x").acquire(timeout=60)
        assert second.token > first.token
        assert not first.valid
        second.release()
