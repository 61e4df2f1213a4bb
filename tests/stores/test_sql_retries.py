"""Deadlocks and serialisation failures, provoked for real: they are sent again, and nobody is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy
from sql_servers import Database, at_rest, inside, weigh
from sqlalchemy.ext.asyncio import create_async_engine

import leasehold
from leasehold import aio
from leasehold.core.lease import state_of
from leasehold.core.protocol import RENEWED, Renewal
from leasehold.stores.sql import session as sql_session
from leasehold.stores.sql.requests import Statement
from leasehold.testing.handles import eventually

pytestmark = pytest.mark.server


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The codes of the errors with which a server answers from now on."""
    codes: list[Any] = []
    original = sql_session.Refused.__init__

    def made(self: Any, code: Any, message: str) -> None:
        codes.append(code)
        original(self, code, message)

    monkeypatch.setattr(sql_session.Refused, "__init__", made)
    return codes


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours waits for a row until the other transaction is over, however slow the machine is."""
    monkeypatch.setattr(sql_session, "PATIENCE", 30.0)
    monkeypatch.setattr(sql_session, "BRIEFLY", 30.0)


def background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(work())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, answers


TOUCH = "UPDATE leasehold SET updated = updated + 1 WHERE namespace = %s AND name = %s"


def test_a_deadlock_with_a_batch_of_renewals(database: Database, namespace: str, refusals: list[Any]) -> None:
    """Our statement has one row and waits for the other; a transaction of somebody else the other way round."""
    code = "40P01" if database.is_postgresql else 1213
    url = f"{database.url}?push=off"
    if database.is_postgresql:  # it looks for a circle once, after so long: by then there must be one
        url += f"&options={quote('-c deadlock_timeout=8s')}"
    with leasehold.connect(f"{url}&pool_size=1", namespace=namespace, ttl=120) as locks:
        leases = [locks.lock("a").acquire()]
        at_rest(locks)
        leases.append(locks.lock("b").acquire())
        core: Any = inside(locks)
        if not database.is_postgresql:  # it gives up on a row after so long: not before there is a circle
            lent = core.driver.source.take(5.0)
            lent.connection.execute(Statement("SET SESSION innodb_lock_wait_timeout = 30", {}), 5.0)
            core.driver.source.give(lent, True)
        batch = [Renewal(each.name, state_of(each).claim.attempt, each.token, 120_000_000) for each in leases]
        for first, second in (("a", "b"), ("b", "a")):  # in which order ours takes them is the planner's choice
            theirs = database.connect(autocommit=False)
            cursor = theirs.cursor()
            weigh(database, cursor)
            cursor.execute(TOUCH, (namespace, second))
            ours, answers = background(lambda: core.driver.run(core.store.renew(batch), 40.0))
            eventually(lambda: waits(database))
            cursor.execute(TOUCH, (namespace, first))  # closes the circle, if ours has this one
            theirs.commit()
            theirs.close()
            ours.join()
            assert answers == [[RENEWED, RENEWED]]
        assert refusals in ([code], [code, code])  # an update can change the order in which they lie
        for each in leases:
            assert each.release()


def waits(database: Database) -> bool:
    """Whether some statement waits for a row's lock at this moment."""
    if database.is_postgresql:
        return bool(database.sql("SELECT 1 FROM pg_locks WHERE NOT granted"))
    return bool(database.sql("SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"))


LEVELS = ["repeatable read", "serializable"]


def setting(level: str) -> str:
    escaped = level.replace(" ", "\\ ")
    return f"-c default_transaction_isolation={escaped}"


def driver(url: str) -> str:
    return url.replace("postgresql:", "postgresql+psycopg:")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("through", ["url", "engine"])
def test_a_serialisation_failure(
    postgresql_server: Any, namespace: str, refusals: list[Any], level: str, through: str
) -> None:
    """Somebody changes the row between our statement's snapshot and its turn."""
    database = Database(postgresql_server)
    engine = sqlalchemy.create_engine(driver(database.url), connect_args={"options": setting(level)})
    url = f"{database.url}?push=off&options={quote(setting(level))}"
    with leasehold.connect(url if through == "url" else engine, namespace=namespace, ttl=120) as locks:
        core: Any = inside(locks)
        lock = locks.lock("name")
        lease = lock.acquire()
        if through == "engine":  # what is held when its listener is up is renewed: that would get in the way too
            eventually(lambda: core.renewals)
        at_rest(locks)
        assert in_the_way(database, namespace, lease.release) is True
        lease = in_the_way(database, namespace, lock.acquire)
        assert in_the_way(database, namespace, lease.renew) is None
        assert lease.valid
        lease.release()
        several = in_the_way(database, namespace, locks.all_of("another", "name").acquire)
        assert set(several.tokens) == {"another", "name"}
        several.release()
    engine.dispose()
    assert refusals == ["40001"] * 4


def in_the_way(database: Database, namespace: str, work: Callable[[], Any]) -> Any:
    """Do it while a transaction has changed the row, and commits when ours already waits for it."""
    theirs = database.connect(autocommit=False)
    theirs.cursor().execute(TOUCH, (namespace, "name"))
    ours, answers = background(work)
    eventually(lambda: waits(database))
    theirs.commit()
    theirs.close()
    ours.join()
    return answers[0]


@pytest.mark.parametrize("through", ["url", "engine"])
async def test_a_serialisation_failure_under_asyncio(
    postgresql_server: Any, namespace: str, refusals: list[Any], through: str
) -> None:
    database = Database(postgresql_server)
    engine = create_async_engine(driver(database.url), connect_args={"options": setting("serializable")})
    target = f"{database.url}?push=off&options={quote(setting('serializable'))}" if through == "url" else engine
    async with aio.connect(target, namespace=namespace, ttl=120) as locks:
        core: Any = inside(locks)
        lease = await locks.lock("name").acquire()
        while through == "engine" and not core.renewals:  # noqa: ASYNC110 (its listener is up)
            await asyncio.sleep(0.01)
        while core.soonest < float("inf"):  # noqa: ASYNC110 (as ``at_rest``)
            await asyncio.sleep(0.01)
        theirs = database.connect(autocommit=False)
        theirs.cursor().execute(TOUCH, (namespace, "name"))
        ours = asyncio.ensure_future(lease.release())
        while not waits(database):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        theirs.commit()
        theirs.close()
        assert await ours is True
    await engine.dispose()
    assert refusals == ["40001"]
