"""Commands of MongoDB that nobody waits for any more: in which order they happen, and whom they hold up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pymongo
import pytest
from mongo_databases import own_url

import leasehold
from leasehold import aio
from leasehold.core import timing
from leasehold.core.protocol import SECOND, Ask, Renewal
from leasehold.stores.common.main_thread import name_of
from leasehold.stores.mongodb import store as mongo
from leasehold.stores.mongodb.requests import Urgency
from leasehold.stores.mongodb.tasks import MongoTasks
from leasehold.stores.mongodb.url import target_from_url

HUNG = 0.05
"""How long to wait for what does not come."""


class Stuck:
    """A driver whose commands are answered when the test says so, and what was asked of it, in order."""

    def __init__(self) -> None:
        self.driver = MongoTasks(target_from_url("mongodb://localhost", ""))
        self.answer: dict[str, asyncio.Event] = {}
        self.told: list[str] = []

    def _command(self, what: str) -> Any:
        return lambda access: self.answer.setdefault(what, asyncio.Event()).wait()

    def _steps(self, name: str, what: str) -> Any:
        yield Urgency.SETTLE
        self.told.append(f"{what} begins")
        yield self._command(what)
        self.told.append(f"{what} ends")

    def _renew(self, batch: list[str]) -> Any:
        yield Urgency.RENEW
        yield self._command(batch[0])

    def run(self, name: str, what: str, limit: float = 60.0) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.driver.run(self._steps(name, what), limit))

    def renew(self, what: str) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.driver.run(self._renew([what]), 60.0))

    def let(self, what: str) -> None:
        """Have it answered, now or when it is asked."""
        self.answer.setdefault(what, asyncio.Event()).set()

    async def cancel(self, name: str, what: str) -> None:
        """Ask, and cancel that when it is under way."""
        task = self.run(name, what)
        while what not in self.answer:  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.fixture
async def stuck() -> AsyncIterator[Stuck]:
    stuck = Stuck()
    yield stuck
    for event in stuck.answer.values():
        event.set()
    await stuck.driver.close()


async def test_cancelled_call_happens_before_a_later_one_about_its_name(stuck: Stuck) -> None:
    await stuck.cancel("x", "acquire")
    abandon = stuck.run("x", "abandon")
    stuck.let("abandon")
    await asyncio.wait({abandon}, timeout=HUNG)
    stuck.let("acquire")
    await abandon
    assert stuck.told == ["acquire begins", "acquire ends", "abandon begins", "abandon ends"]


async def test_call_after_a_cancelled_one_keeps_its_own_limit(stuck: Stuck) -> None:
    """It waits for the call before it; that wait and its own are not to be added up."""
    await stuck.cancel("x", "first")
    with pytest.raises(leasehold.StoreUnavailable, match="earlier, cancelled call"):
        await stuck.run("x", "second", 0.2)
    assert stuck.told == ["first begins"]  # nothing overtakes it
    stuck.let("first")
    stuck.let("third")
    await stuck.run("x", "third")


async def test_cancelled_call_that_hangs_holds_up_no_other_name(stuck: Stuck) -> None:
    await stuck.cancel("x", "acquire")
    stuck.let("another")
    await asyncio.wait_for(stuck.run("y", "another"), 20)
    stuck.let("renewal")
    await asyncio.wait_for(stuck.renew("renewal"), 20)
    assert stuck.told == ["acquire begins", "another begins", "another ends"]


async def test_call_that_is_cancelled_while_another_waits_is_no_failure(stuck: Stuck) -> None:
    """Clients that come and go: the one that waits has to do with what came before it alone."""
    for what in ("release", "later"):
        stuck.let(what)
    await stuck.cancel("x", "acquire")
    release = stuck.run("x", "release")
    await asyncio.wait({release}, timeout=HUNG)
    await stuck.cancel("y", "theirs")
    cancelled = stuck.run("x", "theirs too")  # of the same name, and never sent
    await asyncio.sleep(0)
    cancelled.cancel()
    stuck.let("acquire")
    await asyncio.wait_for(release, 20)
    await asyncio.wait_for(stuck.run("x", "later"), 20)
    assert "theirs too begins" not in stuck.told


def test_name_that_an_operation_is_about_is_known() -> None:
    """By its arguments: before it has begun, and when it is under way."""
    store = mongo.MongoStore()
    ask = Ask("x", "a", "o", "lock", None, SECOND)
    about: dict[str | None, list[Any]] = {
        "x": [
            store.acquire(ask),
            store.acquire(ask._replace(heir=("b", 1))),
            store.release("x", "a", 1, None),
            store.abandon("x", "a"),
            store.interrupt("x", True),
            store.inspect("x"),
            store.read_note("x"),
            store.write_note("x", "a", 1, "text"),
        ],
        None: [store.renew([Renewal("x", "a", 1, SECOND)]), store.scan("x", "", 5), store.tidy()],
    }
    for name, each in about.items():
        for steps in each:
            assert name_of(steps) == name, steps
            next(steps)
            assert name_of(steps) == name, steps
            steps.close()


# With a server.


@pytest.fixture
def replicated(mongodb_replica_set: Any) -> Iterator[str]:
    yield from own_url(mongodb_replica_set)


@pytest.mark.server
async def test_cancelled_call_that_hangs_costs_nobody_a_lease(replicated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction of another program holds the record of the name: the command waits on the server."""
    monkeypatch.setattr(timing, "CALL_LIMIT", 60.0)
    events: list[Any] = []
    with pymongo.MongoClient[Any](replicated) as client:  # the server builds no index while a transaction is open
        client.get_default_database()["leasehold"].create_index("purge", name="leasehold_purge", expireAfterSeconds=0)
    async with aio.connect(replicated, ttl=60) as locks:
        locks.on_event(events.append)
        held = await locks.lock("job").acquire()
        await (await locks.lock("stuck").acquire()).release()
        with pymongo.MongoClient[Any](replicated) as client, client.start_session() as session:
            database = client.get_default_database()
            session.start_transaction()
            database["leasehold"].update_one({"_id.name": "stuck"}, {"$set": {"foreign": 1}}, session=session)
            task = asyncio.ensure_future(locks.lock("stuck").acquire())
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with asyncio.timeout(20):
                await held.renew()
                async with locks.lock("another") as other:
                    await other.renew()
                assert await locks.inspect("job") is not None
                assert await held.release()
                again = await locks.lock("job").try_acquire()
                assert again is not None
                await again.release()
            session.abort_transaction()
            async with asyncio.timeout(20):
                while (lease := await locks.lock("stuck").try_acquire()) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await lease.release()
    assert not {event.type for event in events} & {"lost", "renewal_failed", "release_failed", "unavailable"}


@pytest.fixture
def url(mongodb_server: Any) -> Iterator[str]:
    yield from own_url(mongodb_server)


@pytest.mark.server
async def test_clients_that_come_and_go_do_not_make_the_store_unavailable(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is cancelled somewhere on its way; what the others ask is answered all the same."""
    monkeypatch.setattr(timing, "CALL_LIMIT", 30.0)  # so that no call fails because the machine stands still
    events: list[Any] = []
    async with aio.connect(url, ttl=60) as locks:
        locks.on_event(events.append)

        async def client(number: int) -> None:
            for step in range(1, 60):
                task = asyncio.ensure_future(locks.lock(f"client-{number}").acquire(timeout=60))
                for _ in range(step % 20):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    await (await task).release()
                except asyncio.CancelledError:
                    pass

        async def job() -> None:
            for _ in range(30):
                async with locks.lock("job") as lease:
                    await lease.renew()

        await asyncio.gather(job(), *(client(number) for number in range(8)))
    assert not {event.type for event in events} & {"lost", "renewal_failed", "release_failed", "unavailable"}
