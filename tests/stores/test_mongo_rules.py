"""E5: the pipelines say what ``entry.py`` says. Both are asked the same, at the same times, and must agree in all."""

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
from pymongo.errors import AutoReconnect, OperationFailure

from leasehold.core import entry as model
from leasehold.core.entry import Entry
from leasehold.core.protocol import BROKEN, GONE, RENEWED, SECOND, Ask, Busy, Grant, Mismatch, Renewal, run_steps
from leasehold.errors import StoreUnavailable
from leasehold.stores.mongodb import records
from leasehold.stores.mongodb import store as mongo
from leasehold.stores.mongodb.access import Access
from leasehold.stores.mongodb.calls import callees
from leasehold.stores.mongodb.requests import AFTER, LOOK, Urgency, with_place
from leasehold.stores.mongodb.url import Target

pytestmark = pytest.mark.server

START = datetime(2026, 1, 1)
MS = 1000
STATES = ["waiting", "granted", "held", "interrupted", "resting"]


class Bench:
    """A MongoStore on a real server whose clock the test sets: ``$$NOW`` is replaced in what is sent."""

    def __init__(self, collection: Collection[Any]) -> None:
        self.store = mongo.MongoStore()
        self.collection = collection
        self.access = Access(
            Target(None, collection.database.client, collection.database.name, collection.name, "ns"),
            collection.database.client,
        )
        self.now = START
        self.sent = 0
        self.rings: list[tuple[str, str]] = []

    def run(self, steps: Any) -> Any:
        return run_steps(steps, self.handle)

    def lose(self, steps: Any) -> None:
        """What is asked is on its way, and whoever has asked gives up."""

        def handle(request: Any) -> Any:
            if isinstance(request, mongo.Change):
                raise AutoReconnect("no answer")
            return self.handle(request)

        with pytest.raises(AutoReconnect):
            run_steps(steps, handle)

    def deliver(self, ask: Ask, sent: int) -> Any:
        """A command that was sent then gets to the server now; whoever had asked knows nothing of it."""
        now, self.sent = self.sent, sent - 1
        try:
            return run_steps(mongo.MongoStore().acquire(ask), self.handle)
        finally:
            self.sent = now

    def document(self) -> Any:
        found = self.collection.find_one()
        assert found is not None
        return found

    def at(self, value: Any) -> Any:
        match value:
            case "$$NOW":
                return self.now
            case RawBSONDocument():
                return self.at(bson.decode(value.raw))
            case {"$literal": _}:
                return value
            case dict():
                return {key: self.at(each) for key, each in value.items()}
            case list():
                return [self.at(each) for each in value]
        return value

    def handle(self, request: Any) -> Any:
        def timed(projection: Any) -> Any:
            return {**self.at(projection), "now": {"$literal": self.now}}

        match request:
            case Urgency():
                return None
            case mongo.Sender():
                self.sent += 1
                return "s", self.sent
            case mongo.Change(name, stages, upsert, where, waiter):
                return self.collection.find_one_and_update(
                    self.access.filter(name, where),
                    self.at(stages),
                    projection=timed(AFTER if waiter is None else with_place(waiter)),
                    upsert=upsert,
                    return_document=True,
                )
            case mongo.ChangeMany(changes):
                updates = [
                    pymongo.UpdateOne(self.access.filter(each.name, each.where), self.at(each.stages))
                    for each in changes
                ]
                return self.collection.bulk_write(updates, ordered=False)
            case mongo.Find(names):
                ids = [self.access.id(name) for name in names]
                return self.collection.find({"_id": {"$in": ids}}, timed(LOOK["projection"])).to_list()
            case mongo.PassOn(call):
                self.rings.extend((session, attempt) for session, attempt, _ in callees(call))
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
                gone, expected_gone = reply.taken_from, expected.taken_from
                assert (gone and gone.owner) == (expected_gone and expected_gone.owner)
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


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_refused_renewal_changes_nothing_hours_later_either(bench: Bench, interrupted: bool) -> None:
    """The date of purge moves by the hour: were it to move then, the change would look like a renewal."""
    ttl = 10 * 3600 * SECOND if interrupted else 30 * SECOND
    grant = bench.run(bench.store.acquire(Ask("n", "a", "o", "lock", None, ttl)))
    if interrupted:
        assert bench.run(bench.store.interrupt("n", False))
    before = bench.collection.find_one()
    bench.now += timedelta(hours=3, minutes=1)
    outcome = bench.run(bench.store.renew([Renewal("n", "a", grant.token, 20 * 3600 * SECOND)]))
    assert outcome == [BROKEN if interrupted else GONE]
    assert bench.collection.find_one() == before


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
        bench.at(mongo.with_ask(mongo.arguments(ask._replace(attempt="b"), "s", 2), mongo.pipelines.ACQUIRE)),
    )
    assert (result.matched_count, result.modified_count) == (1, 0)
    assert bench.collection.find_one() == before


# What is answered.


def test_an_answer_does_not_grow_with_the_queue(bench: Bench) -> None:
    """Instead it tells the place, also of one whose attempt looks like a field. That of a command that pymongo has
    retried is the whole record, and tells the same."""
    answers: list[Any] = []

    def handle(request: Any) -> Any:
        answer = bench.handle(request)
        if isinstance(request, mongo.Change):
            assert request.waiter is not None
            retried = records.placed(bench.document(), request.waiter)
            assert (retried["waiters"], retried["place"]) == (answer["waiters"], answer["place"])
            answers.append(answer)
        return answer

    asks = [Ask("n", attempt, "o", "lock", None, 30 * SECOND, queue=True) for attempt in ("a", "b", "$token", "d")]
    for ask in (*asks, asks[2], asks[0]._replace(attempt="e", queue=False)):
        run_steps(bench.store.acquire(ask), handle)
    assert [(one["waiters"], one["place"]) for one in answers] == [(0, -1), (1, 0), (2, 1), (3, 2), (3, 1), (3, -1)]
    assert not any("queue" in one for one in answers)


# Places that are kept for many at once.


def keep(bench: Bench, *attempts: str) -> list[str]:
    """Whose expiry has changed; that anything has is told."""
    before = {one["attempt"]: one["expires"] for one in bench.document()["queue"]}
    stages = mongo.with_ask({"attempts": attempts}, mongo.pipelines.KEEP_PLACES)
    changed = bench.handle(mongo.ChangeMany([mongo.Change("n", stages)])).modified_count
    after = {one["attempt"]: one["expires"] for one in bench.document()["queue"]}
    kept = [attempt for attempt in after if after[attempt] != before[attempt]]
    assert all(after[attempt] == bench.now + timedelta(seconds=15) for attempt in kept)
    assert list(after) == list(before)
    assert changed == bool(kept)
    return kept


def line_up(bench: Bench, ttl: int) -> None:
    """One holds it for so many seconds; a, b and c wait for it, and c is to expire a second after them."""
    for attempt in ("holder", "a", "b", "c"):
        bench.now += timedelta(seconds=attempt == "c")
        bench.run(bench.store.acquire(Ask("n", attempt, "o", "lock", None, ttl * SECOND, queue=attempt != "holder")))
    bench.now += timedelta(seconds=4)


def test_the_places_of_many_are_kept_and_no_others(bench: Bench) -> None:
    line_up(bench, 30)
    assert keep(bench, "a", "gone", "c") == ["a", "c"]
    assert keep(bench, "c", "b") == ["b"]  # c has it from just now
    bench.now += timedelta(seconds=1)
    assert keep(bench, "c", "a", "b") == ["a", "b", "c"]


def test_a_place_that_has_expired_is_not_kept(bench: Bench) -> None:
    line_up(bench, 60)
    bench.now += timedelta(seconds=10.5)
    assert keep(bench, "a", "b", "c") == ["c"]


def test_a_command_that_arrives_after_its_abandon_takes_nothing(bench: Bench) -> None:
    for queue in (False, True):
        ask = Ask("n", f"late-{queue}", "o", "lock", None, 30 * SECOND, queue=queue)
        bench.lose(bench.store.acquire(ask))
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


# A command that is stuck while a later one of the same attempt is answered.


def stuck(bench: Bench, queue: bool = True) -> tuple[Ask, int]:
    """An ask of which the first command is on its way, and when that was sent."""
    ask = Ask("n", "stuck", "o", "lock", None, 30 * SECOND, queue=queue)
    bench.lose(bench.store.acquire(ask))
    return ask, bench.sent


def check_that_it_takes_nothing(bench: Bench, ask: Ask, sent: int) -> None:
    assert isinstance(bench.deliver(ask, sent), Busy)
    found = bench.document()
    assert (found["holders"], found["queue"]) == ([], [])


def test_a_command_that_arrives_after_its_attempt_was_released_takes_nothing(bench: Bench) -> None:
    ask, sent = stuck(bench)
    grant = bench.run(bench.store.acquire(ask))
    bench.now += timedelta(seconds=5)
    assert bench.run(bench.store.release("n", ask.attempt, grant.token, None)) is True
    bench.now += timedelta(seconds=59)
    check_that_it_takes_nothing(bench, ask, sent)
    assert isinstance(bench.run(bench.store.acquire(ask._replace(attempt="other"))), Grant)
    bench.run(bench.store.abandon("n", ask.attempt))  # of which nothing can arrive any more
    assert bench.document()["abandoned"][-1]["expires"] == bench.now + timedelta(milliseconds=1)


def test_a_command_that_arrives_after_its_attempt_has_waited_in_vain_takes_nothing(bench: Bench) -> None:
    holder = Ask("n", "holder", "o", "lock", None, 30 * SECOND)
    grant = bench.run(bench.store.acquire(holder))
    ask, sent = stuck(bench)
    assert isinstance(bench.run(bench.store.acquire(ask)), Busy)
    assert bench.run(bench.store.abandon("n", ask.attempt)) is True
    assert bench.run(bench.store.release("n", "holder", grant.token, None)) is True
    bench.now += timedelta(seconds=5)
    check_that_it_takes_nothing(bench, ask, sent)


def test_a_command_that_arrives_after_its_lease_was_lost_takes_nothing(bench: Bench) -> None:
    """There is no holder to release: another has found it expired, and has gone too."""
    ask, sent = stuck(bench)
    grant = bench.run(bench.store.acquire(ask))
    bench.now += timedelta(seconds=31)
    theirs = bench.run(bench.store.acquire(ask._replace(attempt="other")))
    assert bench.run(bench.store.release("n", "other", theirs.token, None)) is True
    assert bench.run(bench.store.release("n", ask.attempt, grant.token, None)) is False
    check_that_it_takes_nothing(bench, ask, sent)


def test_a_release_whose_answer_got_lost_is_repeated_with_its_note(bench: Bench) -> None:
    ask, sent = stuck(bench)
    grant = bench.run(bench.store.acquire(ask))
    bench.lose(bench.store.release("n", ask.attempt, grant.token, None))
    assert bench.run(bench.store.release("n", ask.attempt, grant.token, None)) is True
    check_that_it_takes_nothing(bench, ask, sent)


def test_a_refusal_answers_its_own_command_alone(bench: Bench) -> None:
    ask, sent = stuck(bench)
    refused = bench.store.acquire(ask)
    assert next(refused) is Urgency.ACQUIRE
    next(refused)
    with pytest.raises(OperationFailure):
        refused.throw(OperationFailure("no"))
    bench.run(bench.store.abandon("n", ask.attempt))
    bench.now += timedelta(seconds=5)
    check_that_it_takes_nothing(bench, ask, sent)


def test_a_lease_that_was_given_back_and_is_asked_for_again_is_had(bench: Bench) -> None:
    """As of one that was broken before its acquire knew of it: the same attempt goes on."""
    ask, _ = stuck(bench)
    grant = bench.run(bench.store.acquire(ask))
    assert bench.run(bench.store.release("n", ask.attempt, grant.token, None)) is True
    assert isinstance(bench.run(bench.store.acquire(ask)), Grant)


def test_a_release_of_which_nothing_can_arrive_leaves_no_note(bench: Bench) -> None:
    ask = Ask("n", "a", "o", "lock", None, 30 * SECOND)
    grant = bench.run(bench.store.acquire(ask))
    sent = []
    run_steps(bench.store.release("n", "a", grant.token, None), lambda each: sent.append(each) or bench.handle(each))
    assert sent == [
        Urgency.SETTLE,
        mongo.Change(
            "n",
            mongo.with_ask({"attempt": "a", "token": grant.token}, mongo.pipelines.RELEASE),
            where=mongo.held_by({"attempt": "a", "token": grant.token}),
        ),
    ]
    assert bench.document()["abandoned"] == []


# Renewals that cross.


def test_a_lease_that_another_call_has_renewed_meanwhile_is_not_gone(bench: Bench) -> None:
    """The keeper renews two of which one is broken, and looks; in between, the holder of the other renews it itself."""
    mine, broken = (bench.run(bench.store.acquire(Ask(n, "a", "o", "lock", None, 30 * SECOND))) for n in ("n", "m"))
    assert bench.run(bench.store.interrupt("m", False))
    batch = [Renewal("n", "a", mine.token, 30 * SECOND), Renewal("m", "a", broken.token, 30 * SECOND)]

    def handle(request: Any) -> Any:
        if isinstance(request, mongo.Find):
            assert bench.run(bench.store.renew(batch[:1])) == [RENEWED]
        return bench.handle(request)

    unknown, lost = run_steps(bench.store.renew(batch), handle)
    assert isinstance(unknown, StoreUnavailable)
    assert "'n'" in str(unknown)
    assert lost == BROKEN
    assert bench.run(bench.store.renew(batch)) == [RENEWED, BROKEN]


# Who is told to have let it expire.


def test_an_old_lapse_is_not_told_again(bench: Bench) -> None:
    """B finds that X let it expire, and C, who is next, gets it and gives it back: B has it from C."""
    x, b, c = (Ask("n", each, f"owner-{each}", "lock", None, 30 * SECOND, queue=True) for each in "xbc")
    bench.run(bench.store.acquire(x._replace(ttl=SECOND)))
    assert bench.run(bench.store.acquire(c)).place == 0
    bench.now += timedelta(seconds=2)
    assert bench.run(bench.store.acquire(b)).place == 0
    grant = bench.run(bench.store.acquire(c))
    assert grant.taken_from is None  # it was b's command that found out
    assert bench.run(bench.store.release("n", "c", grant.token, None)) is True
    assert bench.run(bench.store.acquire(b)).taken_from is None


def test_who_lets_it_expire_is_told_to_whoever_finds_out(bench: Bench) -> None:
    x, b = (Ask("n", each, f"owner-{each}", "lock", None, SECOND) for each in "xb")
    bench.run(bench.store.acquire(x))
    bench.now += timedelta(seconds=3)
    taken_from = bench.run(bench.store.acquire(b)).taken_from
    assert (taken_from.owner, taken_from.expires_in) == ("owner-x", pytest.approx(-2, abs=0.01))


@pytest.mark.parametrize("asks", ["another", "itself"])
def test_who_never_came_for_its_grant_has_let_nothing_expire(bench: Bench, asks: str) -> None:
    x, c = (Ask("n", each, f"owner-{each}", "lock", None, 30 * SECOND, queue=True) for each in "xc")
    grant = bench.run(bench.store.acquire(x))
    assert bench.run(bench.store.acquire(c)).place == 0
    assert bench.run(bench.store.release("n", "x", grant.token, None)) is True  # and c has it, for a first term
    bench.now += timedelta(seconds=1)
    late = bench.run(bench.store.acquire(c if asks == "itself" else c._replace(attempt="b")))
    assert isinstance(late, Grant)
    assert late.taken_from is None


def test_nobody_takes_over_from_itself(bench: Bench) -> None:
    """The answer came so late that it is asked for anew."""
    ask = Ask("n", "a", "o", "lock", None, SECOND)
    first = bench.run(bench.store.acquire(ask))
    bench.now += timedelta(seconds=2)
    again = bench.run(bench.store.acquire(ask))
    assert again.token > first.token
    assert again.taken_from is None


def test_no_abandon_is_forgotten_because_there_are_many(bench: Bench) -> None:
    asks = [Ask("n", f"late-{number}", "o", "lock", None, 30 * SECOND) for number in range(50)]
    for ask in asks:
        bench.lose(bench.store.acquire(ask))
    bench.sent = 1000
    for ask in asks:
        assert bench.run(bench.store.abandon("n", ask.attempt)) is False
    bench.sent = 0
    for ask in asks:
        assert isinstance(bench.run(bench.store.acquire(ask)), Busy)


def test_an_abandon_after_which_nothing_can_arrive_is_not_remembered(bench: Bench) -> None:
    """Such as of one who has waited in vain: there may be a great many of them."""
    bench.run(bench.store.acquire(Ask("n", "holder", "o", "lock", None, 30 * SECOND)))
    for number in range(5):
        ask = Ask("n", f"a-{number}", "o", "lock", None, 30 * SECOND, queue=True)
        assert isinstance(bench.run(bench.store.acquire(ask)), Busy)
        assert bench.run(bench.store.abandon("n", ask.attempt)) is True
        bench.now += timedelta(milliseconds=1)
    bench.run(bench.store.abandon("n", "another"))
    document = bench.collection.find_one()
    assert document is not None
    assert len(document["abandoned"]) == 1


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


def test_tokens_go_on_after_release_and_purge(bench: Bench) -> None:  # E7
    """A takes and releases. If that deleted the record and its counter, B would get token 1 again."""
    seen = []
    for attempt in ("process-a", "process-b", "process-c"):
        grant = bench.run(bench.store.acquire(Ask("n", attempt, "o", "lock", None, 30 * SECOND)))
        seen.append(grant.token)
        assert bench.run(bench.store.release("n", attempt, grant.token, None))
        if attempt == "process-b":
            bench.collection.delete_many({})  # as the TTL index does, a day later
            bench.now += timedelta(days=1)
    assert seen == sorted(set(seen))
