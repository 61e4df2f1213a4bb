"""The pipelines say what ``entry.py`` says: both are asked the same, at the same times, and must agree in all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pymongo
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection

from leasehold import entry as model
from leasehold.entry import Entry
from leasehold.protocol import BROKEN, SECOND, Ask, Busy, Grant, Mismatch, Renewal, run_steps
from leasehold.stores import mongo, mongo_link

pytestmark = pytest.mark.server

START = datetime(2026, 1, 1)
MS = 1000
STATES = ["waiting", "granted", "held", "interrupted", "resting"]


class Bench:
    """A MongoStore on a real server whose clock the test sets: ``$$NOW`` is replaced in what is sent."""

    def __init__(self, collection: Collection[Any]) -> None:
        self.store = mongo.MongoStore()
        self.collection = collection
        self.access = mongo_link.Access(
            mongo_link.Link(None, collection.database.client, collection.database.name, collection.name, "ns"),
            collection.database.client,
        )
        self.now = START
        self.sent = 0
        self.rings: list[tuple[str, str]] = []

    def run(self, steps: Any) -> Any:
        return run_steps(steps, self._handle)

    def _at(self, value: Any) -> Any:
        match value:
            case "$$NOW":
                return self.now
            case RawBSONDocument():
                return self._at(bson.decode(value.raw))
            case {"$literal": _}:
                return value
            case dict():
                return {key: self._at(each) for key, each in value.items()}
            case list():
                return [self._at(each) for each in value]
        return value

    def _handle(self, request: Any) -> Any:
        after = self._at(mongo_link.AFTER)
        after["now"] = {"$literal": self.now}
        match request:
            case mongo.Sender():
                self.sent += 1
                return "s", self.sent
            case mongo.Change(name, stages, upsert, holder):
                return self.collection.find_one_and_update(
                    self.access.filter(name, holder),
                    self._at(stages),
                    projection=after,
                    upsert=upsert,
                    return_document=True,
                )
            case mongo.ChangeMany(changes):
                updates = [
                    pymongo.UpdateOne(self.access.filter(each.name, each.holder), self._at(each.stages))
                    for each in changes
                ]
                return self.collection.bulk_write(updates, ordered=False).modified_count
            case mongo.Find(names):
                ids = [self.access.id(name) for name in names]
                return self.collection.find({"_id": {"$in": ids}}, after).to_list()
            case mongo.Ring(calls):
                self.rings.extend(calls)
                return None
        raise TypeError(request)


@pytest.fixture
def bench(mongodb_server: Any) -> Iterator[Bench]:
    client: pymongo.MongoClient[Any] = pymongo.MongoClient(mongodb_server.url)
    collection = client.get_default_database()["rules"]
    collection.drop()
    yield Bench(collection)
    client.close()


def micro(moment: datetime) -> int:
    return int(moment.replace(tzinfo=UTC).timestamp() * 1000) * MS


def stored(document: Any) -> Any:
    """What MongoDB has, as the model would say it."""
    if document is None:
        return (0, [], [])

    def permit(one: Any) -> Any:
        names = ("attempt", "owner", "session", "weight", "state")
        held = (one["token"], micro(one["acquired"])) if one["state"] != "waiting" else (0, 0)
        return (*(one[name] for name in names), *held, micro(one["expires"]))

    holders, queue = ([permit(one) for one in document[array]] for array in ("holders", "queue"))
    return (document["token"], holders, queue)


def modelled(entry: Entry) -> Any:
    def permit(one: model.Permit) -> Any:
        names = (one.attempt, one.owner, one.session, one.weight, STATES[one.state], one.token, one.acquired)
        return (*names, one.expires)

    return (entry.token, [permit(one) for one in entry.holders], [permit(one) for one in entry.queue])


def longer(ttl: int) -> int:
    """A term as MongoDB counts it: one ms more, because its clock is cut to the ms."""
    return ttl + MS


SHAPES = [("lock", 1, (1,)), ("semaphore", 3, (1, 1, 2)), ("rwlock", 5, (1, 5))]


@pytest.mark.parametrize("seed", range(12))
def test_the_pipelines_do_what_the_entry_does(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    shape, limit, weights = SHAPES[seed % len(SHAPES)]
    entry = Entry("n", 0)
    tokens: dict[str, int] = {}
    asks: dict[str, Ask] = {}
    for step in range(90):
        bench.now += timedelta(milliseconds=rng.choice([0, 1, 37, 300, 900, 4503, 9007]))
        now = micro(bench.now)
        entry.rings.clear()
        bench.rings.clear()
        known = sorted(asks)
        attempt = rng.choice(known) if known and rng.random() < 0.7 else f"a{step}"
        action = rng.choice(["acquire"] * 4 + ["renew", "release", "release", "abandon", "interrupt"])
        if action == "acquire":
            if attempt not in asks:
                mine = (shape, limit) if rng.random() < 0.93 else ("other", 2)
                asks[attempt] = Ask(
                    *("n", attempt, f"$owner.{attempt}", "lock", '{"$set": 1}'),
                    ttl=rng.choice([300 * MS, 2 * SECOND, 20 * SECOND]),
                    rest=rng.choice([0, 0, 0, 5 * SECOND]),
                    shape=mine[0],
                    limit=mine[1],
                    weight=rng.choice(weights),
                    fair=rng.random() < 0.8,
                    queue=rng.random() < 0.7,
                )
            ask = asks[attempt]
            reply, expected = (
                bench.run(bench.store.acquire(ask)),
                entry.acquire(ask._replace(ttl=longer(ask.ttl)), "s", now, now),
            )
            assert type(reply) is type(expected), (step, reply, expected)
            if isinstance(expected, Grant):
                assert isinstance(reply, Grant)
                assert reply.token == expected.token
                tokens[attempt] = reply.token
                if expected.taken_from is not None:
                    assert reply.taken_from is not None
                    assert reply.taken_from.owner == expected.taken_from.owner
            elif isinstance(expected, Busy):
                assert isinstance(reply, Busy)
                assert reply.place == expected.place
                assert (reply.holder and reply.holder.owner) == (expected.holder and expected.holder.owner)
            else:
                assert isinstance(expected, Mismatch)
                assert tuple(reply) == tuple(expected)
        elif action == "renew":
            ttl = rng.choice([SECOND, 30 * SECOND])
            batch = [Renewal("n", attempt, tokens.get(attempt, 1), ttl)]
            expected_outcome = entry.renew(attempt, tokens.get(attempt, 1), longer(ttl), now)
            assert bench.run(bench.store.renew(batch)) == [expected_outcome]
        elif action == "release":
            token = tokens.get(attempt, 1) + (rng.random() < 0.1)
            if bench.run(bench.store.release("n", attempt, token, None)) != entry.release(attempt, token, now, now):
                pytest.fail(f"step {step}: release of {attempt} differs")
        elif action == "abandon":
            assert bench.run(bench.store.abandon("n", attempt)) == entry.abandon(attempt, now, now)
            asks.pop(attempt, None)  # an attempt is not used again
        elif rng.random() < 0.3:
            force = rng.random() < 0.5
            assert bench.run(bench.store.interrupt("n", force)) == entry.interrupt(force, now, now)
        # Let both notice what has expired, so that they can be compared as they are.
        entry._expire(now, now)
        bench.run(bench.store.abandon("n", "nobody"))
        document = bench.collection.find_one()
        assert stored(document) == modelled(entry), (seed, step, action, attempt)
        assert {ring for ring in entry.rings if ring[1] not in (attempt, "")} <= set(bench.rings), (seed, step, action)


def test_an_interrupted_lease_is_not_renewed(bench: Bench) -> None:
    grant = bench.run(bench.store.acquire(Ask("n", "a", "o", "lock", None, 30 * SECOND)))
    assert bench.run(bench.store.interrupt("n", False))
    before = bench.collection.find_one()
    bench.now += timedelta(seconds=5)
    assert bench.run(bench.store.renew([Renewal("n", "a", grant.token, 30 * SECOND)])) == [BROKEN]
    assert bench.collection.find_one() == before


def test_a_refused_acquire_writes_nothing(bench: Bench) -> None:
    ask = Ask("n", "a", "o", "lock", None, 30 * SECOND)
    bench.run(bench.store.acquire(ask))
    before = bench.collection.find_one()
    bench.now += timedelta(seconds=1)
    result = bench.collection.update_one(
        bench.access.filter("n"),
        bench._at(mongo.with_ask(mongo._ask(ask._replace(attempt="b"), "s", 2), mongo.pipelines.ACQUIRE)),
    )
    assert (result.matched_count, result.modified_count) == (1, 0)
    assert bench.collection.find_one() == before


def test_a_command_that_arrives_after_its_abandon_takes_nothing(bench: Bench) -> None:
    for queue in (False, True):
        ask = Ask("n", f"late-{queue}", "o", "lock", None, 30 * SECOND, queue=queue)
        bench.sent = 10
        assert bench.run(bench.store.abandon("n", ask.attempt)) is False
        bench.sent = 5  # it was sent before, and was stuck somewhere
        assert isinstance(bench.run(bench.store.acquire(ask)), Busy)
    document = bench.collection.find_one()
    assert document is not None
    assert (document["holders"], document["queue"]) == ([], [])
    # It is remembered for a minute.
    bench.now += timedelta(seconds=61)
    assert isinstance(bench.run(bench.store.acquire(ask)), Grant)
    document = bench.collection.find_one()
    assert document is not None
    assert document["abandoned"] == []


def test_the_record_is_kept_a_day_and_purged_within_two(bench: Bench) -> None:  # A3, E7
    ask = Ask("n", "a", "o", "lock", None, 30 * SECOND)
    grant = bench.run(bench.store.acquire(ask))
    assert bench.run(bench.store.release("n", "a", grant.token, None))
    document = bench.collection.find_one()
    assert document is not None
    assert timedelta(hours=24) <= document["purge"] - bench.now <= timedelta(hours=25)
    # A long lease is never purged while it is held.
    long = Ask("n", "b", "o", "lock", None, 366 * 86400 * SECOND)
    bench.run(bench.store.acquire(long))
    document = bench.collection.find_one()
    assert document is not None
    assert document["purge"] - bench.now > timedelta(days=366, hours=23)


def test_tokens_go_on_after_release_and_purge(bench: Bench) -> None:  # E7, the very sequence of the document
    """A takes and releases; the document's release deletes the record, and B would get token 1 again."""
    seen = []
    for attempt in ("process-a", "process-b", "process-c"):
        grant = bench.run(bench.store.acquire(Ask("n", attempt, "o", "lock", None, 30 * SECOND)))
        seen.append(grant.token)
        assert bench.run(bench.store.release("n", attempt, grant.token, None))
        if attempt == "process-b":
            bench.collection.delete_many({})  # as the TTL index does, a day later
            bench.now += timedelta(days=1)
    assert seen == sorted(set(seen))
