"""The tasks of the SQL drivers are cancelled: in the worst moment, or all at once by somebody else."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiomysql
import pytest
from sql_servers import Database, begins_to_hear, inside
from sqlalchemy.ext.asyncio import create_async_engine

from leasehold import aio
from leasehold.core.lease import state_of
from leasehold.stores.sql import tasks as sql_tasks
from leasehold.stores.sql.tasks import AsyncSqlPool, SqlTasks

pytestmark = pytest.mark.server


@asynccontextmanager
async def connected(how: str, database: Database, namespace: str) -> AsyncIterator[aio.Locks]:
    """By URL, or by what a user has made who lets aiomysql limit the time of a connect."""
    place: dict[str, Any] = {"host": "127.0.0.1", "port": database.port, "user": "root", "db": "leasehold"}
    if how == "url":
        async with aio.connect(database.url, namespace=namespace) as locks:
            yield locks
    elif how == "pool":
        async with (
            aiomysql.create_pool(0, 2, **place, charset="utf8mb4", autocommit=True, connect_timeout=30) as pool,
            aio.connect(pool, namespace=namespace) as locks,
        ):
            yield locks
    else:
        url = f"mysql+aiomysql://root@127.0.0.1:{database.port}/leasehold?charset=utf8mb4"
        engine = create_async_engine(url, connect_args={"connect_timeout": 30})
        try:
            async with aio.connect(engine, namespace=namespace) as locks:
                yield locks
        finally:
            await engine.dispose()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["url", "pool", "engine"])
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_listener_that_is_to_end_in_the_moment_it_has_connected_does(
    kind: str, how: str, request: pytest.FixtureRequest, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11's wait_for, by which aiomysql connects if it is given a limit, forgets a cancellation that comes
    just then. Its socket would be left open in a loop that ends after ``close()``, as it may."""
    database = Database(request.getfixturevalue(f"{kind}_server"))
    ended: list[bool] = []

    async def listen_and_close() -> None:
        closing: list[asyncio.Future[None]] = []
        loop: Any = asyncio.get_running_loop()
        opens = loop.create_connection
        async with connected(how, database, namespace) as locks:
            driver = inside(locks).driver
            assert isinstance(driver, SqlTasks)

            async def opens_and_is_closed(*args: Any, **options: Any) -> Any:
                streams = await opens(*args, **options)
                if not closing:  # it is cancelled as soon as this task, or that of a wait_for, gives way
                    closing.append(asyncio.ensure_future(driver.close()))
                return streams

            monkeypatch.setattr(loop, "create_connection", opens_and_is_closed)
            await driver.listen("", None)
            [listener] = [task for task in asyncio.all_tasks() if "SqlTasks._listen" in repr(task.get_coro())]
            await until(lambda: closing)
            await closing[0]
            await asyncio.wait([listener], timeout=30)
            ended.append(listener.cancelled())

    loop = asyncio.new_event_loop()
    loop.run_until_complete(listen_and_close())
    loop.close()
    gc.collect()  # who is left open is found here
    assert ended == [True]


def cancel_all_tasks() -> None:
    """As some frameworks do when they shut down, and go on all the same."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_listener_and_keeper_come_back_when_every_task_was_cancelled(
    database: Database, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_tasks, "RETRY_WITHOUT_PUSH", sql_tasks.RETRY)
    async with (
        aio.connect(database.url, namespace=namespace, ttl=60) as locks,
        aio.connect(database.url, namespace=namespace, ttl=60) as others,
    ):
        driver = inside(locks).driver
        assert isinstance(driver, SqlTasks)
        held = await locks.lock("mine", renew_every=0.2).acquire()
        theirs = await others.lock("name").acquire()
        for _ in range(2):
            waiter = asyncio.ensure_future(locks.lock("name", timeout=60).acquire())
            await until(lambda: driver.session.waiters)
            await begins_to_hear(locks)
            cancel_all_tasks()
            await asyncio.wait([waiter])
            assert not await driver.listen("", None), "one that ends is not to be relied upon"
            assert held.valid
        waiter = asyncio.ensure_future(locks.lock("name", timeout=60).acquire())
        await until(lambda: driver.session.waiters)
        await begins_to_hear(locks)
        known = state_of(held).deadline
        await until(lambda: state_of(held).deadline > known)
        await theirs.release()
        await (await waiter).release()
        await held.release()


@pytest.mark.parametrize("given", [False, True])
async def test_a_call_that_is_cancelled_while_it_waits_for_a_connection_leaves_its_turn(
    given: bool, database: Database, namespace: str
) -> None:
    """Else a pool would be empty for good after as many of them as it has connections."""
    separator = "&" if "?" in database.url else "?"
    async with aio.connect(f"{database.url}{separator}pool_size=1", namespace=namespace) as locks:
        driver = inside(locks).driver
        assert isinstance(driver, SqlTasks)
        assert isinstance(driver.source, AsyncSqlPool)
        pool = driver.source
        lent = await pool.take(30.0)
        call = asyncio.ensure_future(locks.inspect("name"))
        await until(lent.slots.waiting)
        if given:
            await pool.give(lent, True)  # it has its turn, and has not been told yet
        cancel_all_tasks()
        await asyncio.wait([call])
        if not given:
            await pool.give(lent, True)
        assert await locks.inspect("name") is None
