"""uvloop in place of asyncio's own event loop, which has sockets, timers and turns of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop

from leasehold import LeaseLost, aio

STORES = ("sqlite", "redis", "mongodb", "postgresql", "mariadb", "mysql", "etcd", "zookeeper")


def in_uvloop(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


async def until_lost(one: aio.Locks, other: aio.Locks) -> None:
    async with asyncio.timeout(60), one.lock("x", on_lost="cancel"):
        assert await other.break_lease("x", force=True)
        await asyncio.sleep(60)


@pytest.mark.parametrize("store", STORES)
def test_leases_are_taken_handed_on_renewed_lost_and_given_up_in_uvloop(
    store: str, request: pytest.FixtureRequest, namespace: str
) -> None:
    tmp_path = request.getfixturevalue("tmp_path")
    url = f"sqlite:///{tmp_path}/leases.db" if store == "sqlite" else request.getfixturevalue(f"{store}_server").url

    async def work() -> None:
        one = aio.connect(url, namespace=namespace, ttl=20)
        other = aio.connect(url, namespace=namespace, ttl=20)
        async with one, other:
            lease = await one.lock("x").acquire()
            turns = 20
            waiting = [asyncio.create_task(other.lock("x").acquire()) for _ in range(turns)]
            given_up = asyncio.create_task(other.lock("x").acquire())
            await asyncio.sleep(0)
            given_up.cancel()
            await lease.renew()
            assert await lease.release()
            tokens = [lease.token]
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=60)
                assert len(done) == 1
                waiting = [task for task in waiting if task not in done]
                had = done.pop().result()
                tokens.append(had.token)
                assert await had.release()
            assert tokens == sorted(set(tokens))
            with pytest.raises(LeaseLost):
                await until_lost(one, other)
            with pytest.raises(asyncio.CancelledError):
                await given_up

    in_uvloop(work())
