"""Clusters sharded by ``_id``, as far as it can be seen without a router (``mongos``), which the test servers lack.

A router sends a command on to one shard if its filter has the whole ``_id``, and only then is one shard's atomic change
the change of the name. So every command that leaves leasehold is looked at, on a real server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pymongo
import pytest
from mongo_databases import own_database
from mongo_listeners import opened
from mongo_sent import Sent

import leasehold
from leasehold.core.protocol import SECOND, Ask, Renewal, ThreadDriver
from leasehold.stores.mongodb import admin as mongo_admin
from leasehold.stores.mongodb.access import Access
from leasehold.stores.mongodb.errors import translate
from leasehold.stores.mongodb.store import MongoStore
from leasehold.stores.mongodb.url import target_from_client

pytestmark = pytest.mark.server

NAMESPACE = "team"
WRITES = ("findAndModify", "update")
SOON = {"$add": ["$$NOW", 5000]}
"""A place that lasts no longer is refreshed by the next check."""


@pytest.fixture
def database(mongodb_server: Any) -> Iterator[Any]:
    yield from own_database(mongodb_server)


def filters(command: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    match next(iter(command)):
        case "findAndModify":
            return [command["query"]]
        case "update":
            assert not any(each.get("multi") for each in command["updates"])
            return [each["q"] for each in command["updates"]]
        case "find":
            return [command["filter"]]
        case other:
            raise AssertionError(f"{other} says of no document which it is for")


def is_whole(key: Any) -> bool:
    return (
        isinstance(key, dict)
        and list(key) == ["ns", "name"]
        and key["ns"] == NAMESPACE
        and isinstance(key["name"], str)
    )


def run_everything(store: MongoStore, driver: ThreadDriver, leases: Any) -> set[str]:
    """Each operation of the store, in each of its ways; which they were."""
    done = set()

    def call(operation: str, *arguments: Any) -> Any:
        done.add(operation)
        return driver.run(getattr(store, operation)(*arguments), 20.0)

    def ask(name: str, **more: Any) -> Ask:
        return Ask(name, os.urandom(8).hex(), "me", "lock", None, 60 * SECOND, **more)

    def renewal(ask: Ask, token: int) -> Renewal:
        return Renewal(ask.name, ask.attempt, token, 60 * SECOND)

    first, second = ask("a"), ask("b")
    tokens = [call("acquire", each).token for each in (first, second)]
    call("renew", [renewal(first, tokens[0]), renewal(second, tokens[1])])
    call("renew", [renewal(first, tokens[0]), renewal(second, 1)])  # not all: it looks which
    waiting = [ask("a", queue=True), ask("b", queue=True)]
    for each in waiting:
        call("acquire", each)
    call("keep_waiting", waiting)
    leases.update_many({"queue.0": {"$exists": True}}, [{"$set": {"queue.expires": SOON}}])
    call("keep_waiting", waiting)  # and refresh their places
    call("inspect", "a")
    call("scan", "", "", 100)
    call("scan", "a", "a", 100)
    call("write_note", "a", first.attempt, tokens[0], "text")
    call("read_note", "a")
    heir = ask("a", heir=(first.attempt, tokens[0]))
    tokens[0] = call("acquire", heir).token
    call("release", "a", heir.attempt, tokens[0], None)
    call("interrupt", "b", False)
    call("interrupt", "b", True)
    for each in waiting:
        call("abandon", each.name, each.attempt)
    call("tidy")
    call("read_clock", "a")
    return done


def test_every_command_says_which_document_it_is_for(mongodb_server: Any, database: Any) -> None:
    """E5: an acquire is one `findAndModify` of one document."""
    sent = Sent()
    with pymongo.MongoClient[Any](mongodb_server.url, event_listeners=[sent]) as client:
        with opened(client[database.name], NAMESPACE) as (store, driver):
            done = run_everything(store, driver, database["leasehold"])
    operations = {name for name, value in vars(MongoStore).items() if callable(value) and not name.startswith("_")}
    assert done == operations, "or not everything was looked at"
    leases = [one for one in sent.commands if one.get(next(iter(one))) == "leasehold"]
    asked = [one for one in leases if next(iter(one)) not in ("createIndexes", "getMore", "killCursors")]
    assert {next(iter(one)) for one in asked} == {*WRITES, "find"}
    for command in asked:
        for each in filters(command):
            key = each["_id"]
            if next(iter(command)) in WRITES or set(key) == {"ns", "name"}:
                assert is_whole(key), command
            elif "$in" in key:
                assert all(is_whole(one) for one in key["$in"]), command
            else:  # a page of a listing
                assert set(key) in ({"$gte", "$lt"}, {"$gt", "$lt"}), command
                assert all(list(one) == ["ns", "name"] and one["ns"] == NAMESPACE for one in key.values()), command
    assert not any("autocommit" in one for one in sent.commands)  # nor is there a transaction over shards


@pytest.mark.parametrize(
    ("key", "level"),
    [
        (None, None),
        ({"_id": "hashed"}, None),
        ({"_id": 1}, None),
        ({"purge": 1}, "error"),
        ({"_id": 1, "x": 1}, "error"),
    ],
    ids=str,
)
def test_another_shard_key_is_refused(database: Any, key: Any, level: str | None) -> None:
    """A cluster keeps the keys in `config.collections`, where any server can keep them."""
    access = Access(target_from_client(database, ""), database.client)
    router, this = {"msg": "isdbgrid"}, {"_id": f"{database.name}.leasehold"}
    kept = database.client["config"]["collections"]
    try:
        if key is not None:
            kept.insert_one({**this, "key": key})
        found = list(mongo_admin.topology(access, router))
        assert [f.level for f in found] == ["ok", *([level] if level else [])]
        assert "routers" in found[0].message
        if level:
            assert "sharded by" in found[1].message
            assert "hashed" in found[1].advice
            kept.update_one(this, {"$set": {"dropped": True}})
            assert [f.level for f in mongo_admin.topology(access, router)] == ["ok"]
    finally:
        kept.delete_one(this)


def test_the_errors_of_a_cluster_in_our_terms() -> None:
    error = pymongo.errors.OperationFailure("Query for sharded findAndModify must contain the shard key", 61)
    told = translate(error, "MongoDB collection shop.leasehold")
    assert type(told) is leasehold.StoreNotReady
    assert "not sharded by `_id`" in str(told)
