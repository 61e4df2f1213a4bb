"""A PostgreSQL server that refuses NOTIFY: releases are done, and waiters poll."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy

import leasehold
from leasehold import aio
from leasehold.testing.handles import eventually

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]


@pytest.fixture
def url(postgresql_server: Any) -> Iterator[str]:
    """Of a user that may not call pg_notify, in a database of its own."""
    name = f"mute_{os.urandom(4).hex()}"
    with psycopg.connect(postgresql_server.url, autocommit=True) as server:
        server.execute(f"CREATE ROLE {name} LOGIN")
        server.execute(f"CREATE DATABASE {name} OWNER {name}")
        with psycopg.connect(f"postgresql://postgres@127.0.0.1:{postgresql_server.port}/{name}") as database:
            database.execute("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC")
        yield f"postgresql://{name}@127.0.0.1:{postgresql_server.port}/{name}"
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def hand_over(holder: leasehold.Locks, waiter: leasehold.Locks, caplog: pytest.LogCaptureFixture) -> None:
    taken: list[leasehold.Lease] = []
    for _ in range(2):
        lease = holder.lock("name", ttl=60).acquire(timeout=30)
        waiting = threading.Thread(target=lambda: taken.append(waiter.lock("name").acquire(timeout=60)))
        waiting.start()
        eventually(lambda: (info := holder.inspect("name")) is not None and info.waiters == 1)
        assert lease.release(), "the release was undone with its NOTIFY"
        waiting.join()
        assert taken[-1].token > lease.token
        assert taken[-1].release()
    warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(warnings) == 1, [each.getMessage() for each in warnings]
    assert "NOTIFY" in warnings[0].getMessage()


def test_release_is_done_where_the_server_refuses_to_notify(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with leasehold.connect(url) as holder, leasehold.connect(url) as waiter:
        hand_over(holder, waiter, caplog)


def test_release_in_an_engine_is_done_where_the_server_refuses_to_notify(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with leasehold.connect(engine) as holder, leasehold.connect(url) as waiter:
        hand_over(holder, waiter, caplog)
    engine.dispose()


async def test_release_in_a_task_is_done_where_the_server_refuses_to_notify(url: str) -> None:
    async with aio.connect(url) as holder, aio.connect(url) as waiter:
        lease = await holder.lock("name", ttl=60).acquire(timeout=30)
        waiting = asyncio.ensure_future(waiter.lock("name").acquire(timeout=60))
        for _ in range(1000):
            info = await holder.inspect("name")
            if info is not None and info.waiters:
                break
            await asyncio.sleep(0.01)
        assert await lease.release()
        taken = await waiting
        assert taken.token > lease.token
        assert await taken.release()
