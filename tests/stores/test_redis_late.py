"""Acquires that reach a Redis when nobody waits for them any more: whatever they were to take, they take nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from leasehold.core.protocol import SECOND, Busy, Grant, Missing, Steps
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.requests import ScriptCall
from leasehold.testing.api import Api
from leasehold.testing.handles import Locks, eventually, make_ask
from leasehold.testing.inside import core
from servers.proxy import Proxy
from servers.redis import Redis

Connect = Callable[..., Locks]
A, B = "a" * 32, "b" * 32
TTL = 600.0


@pytest.fixture(autouse=True)
def client(redis_server: Redis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url, decode_responses=False) as client:
        client.flushall()
        yield client
        client.flushall()


@pytest.fixture(params=["url", "client"])
def target(request: pytest.FixtureRequest, api: Api, redis_server: Redis) -> Iterator[Any]:
    if request.param == "url":
        yield redis_server.url
        return
    theirs = (redis.Redis if api.side == "threads" else redis.asyncio.Redis).from_url(redis_server.url)
    yield theirs
    api.call(theirs.close if api.side == "threads" else theirs.aclose)  # type: ignore[attr-defined]


def key(name: str) -> str:
    return f"leasehold:{{:{name}}}"


def given_up(steps: Steps[Any]) -> ScriptCall:
    """What the operation asks of the server first, and has heard no answer to."""
    call: ScriptCall = next(steps)
    steps.close()
    return call


def send(call: ScriptCall) -> Steps[Any]:
    return (yield call)


def marks(client: redis.Redis, name: str) -> int:
    return sum(field.startswith(b"w") for field in client.hkeys(key(name)))


@pytest.mark.parametrize("what", ["free", "never used", "held", "several"])
def test_an_acquire_that_was_abandoned_comes_too_late(
    target: Any, connect: Connect, client: redis.Redis, what: str
) -> None:
    """It would hold the name for its whole ttl, or stand in the queue, and nobody would know of it."""
    locks = connect(target)
    held = None
    if what != "never used":
        held = locks.lock("x", ttl=TTL).acquire(20)
    if held is not None and what != "held":
        held.release()
    ask = make_ask("x", A, TTL, queue=what != "several")
    asks = [ask, make_ask("y", B, TTL)]
    late = given_up(locks.store.acquire_all(asks) if what == "several" else locks.store.acquire(ask))
    for each in asks if what == "several" else [ask]:
        assert locks.run(locks.store.abandon(each.name, each.attempt)) is False
    assert locks.run(send(late))[0] != 1
    assert not client.exists(key("x") + ":queue")
    if held is not None and what == "held":
        assert held.release()
    assert locks.leases() == []
    assert 0 < client.ttl(key("x")) <= 27 * 3600
    assert locks.lock("x").acquire(20).release()


def test_an_acquire_whose_lease_was_given_back_comes_too_late(target: Any, connect: Connect) -> None:
    """The first try was stuck; the second, over another connection, was granted, and that lease is over."""
    locks = connect(target)
    ask = make_ask("x", A, TTL)
    late = given_up(locks.store.acquire(ask))
    reply = locks.run(locks.store.acquire(ask))
    assert isinstance(reply, Grant)
    assert locks.run(locks.store.release("x", A, reply.token, None)) is True
    assert locks.run(send(late))[0] != 1
    assert locks.leases() == []


def test_what_a_late_acquire_has_taken_is_given_back_by_the_release(
    target: Any, connect: Connect, client: redis.Redis
) -> None:
    """The lease had expired, or was forgotten, when it came: it has another token than the one that is released."""
    locks = connect(target)
    ask = make_ask("x", A, TTL, rest=int(TTL) * SECOND)
    late = given_up(locks.store.acquire(ask))
    reply = locks.run(locks.store.acquire(ask))
    assert isinstance(reply, Grant)
    client.flushall()
    assert locks.run(send(late))[0] == 1
    assert locks.run(locks.store.release("x", A, reply.token, None)) is False
    assert locks.leases() == []
    assert locks.run(send(late))[0] != 1
    assert client.ttl(key("x")) > 0


def test_a_takeover_that_comes_too_late(target: Any, connect: Connect) -> None:
    locks = connect(target)
    held = locks.lock("x", ttl=TTL).acquire(20)
    (holding,) = locks.run(locks.store.inspect("x"))
    ask = make_ask("x", B, TTL, heir=(holding.attempt, held.token))
    late = given_up(locks.store.acquire(ask))
    assert locks.run(locks.store.abandon("x", B)) is False
    locks.run(send(late))
    held.renew()
    assert held.release()


def test_one_whose_answer_was_lost_goes_on_asking(target: Any, connect: Connect) -> None:
    """It was granted and broken before it knew: it gives that back, and asks again. Only its earlier tries are late."""
    locks = connect(target)
    ask = make_ask("x", A, TTL)
    late = given_up(locks.store.acquire(ask))
    assert locks.run(send(late))[0] == 1
    assert locks.run(locks.store.interrupt("x", False)) is True
    reply = locks.run(locks.store.acquire(ask))
    assert isinstance(reply, Busy)
    assert reply.holder is not None
    assert reply.holder.attempt == A
    assert locks.run(locks.store.release("x", A, reply.holder.token, None)) is True
    assert locks.run(send(late))[0] != 1
    again = locks.run(locks.store.acquire(ask))
    assert isinstance(again, Grant)
    assert again.token > reply.holder.token
    assert locks.run(locks.store.release("x", A, again.token, None)) is True


def test_an_attempt_that_was_always_answered_leaves_no_mark(target: Any, connect: Connect, client: redis.Redis) -> None:
    locks = connect(target)
    held = locks.lock("x", ttl=TTL).acquire(20)
    assert isinstance(locks.ask("x", A, TTL, queue=True), Busy)
    assert locks.run(locks.store.abandon("x", A)) is True
    assert isinstance(locks.ask("x", B, TTL, heir=("c" * 32, 1)), Missing)
    assert held.release()
    assert not client.hexists(key("x"), "x")
    assert marks(client, "x") == 0


def test_marks_are_removed_in_time(target: Any, connect: Connect, client: redis.Redis) -> None:
    """Those that are over, by whoever makes the next; and never are there more than a thousand."""
    locks = connect(target)
    attempts = [f"{number:032x}" for number in range(1010)]

    def give_up(attempt: str) -> ScriptCall:
        given_up(locks.store.acquire(make_ask("x", attempt, TTL)))
        return given_up(locks.store.abandon("x", attempt))

    for attempt in attempts:
        assert locks.run(send(give_up(attempt))) == 0
    assert marks(client, "x") == 1000
    client.eval(
        "local marks = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'x'))\n"
        "for place = 2, #marks, 2 do marks[place] = 1 end\n"
        "redis.call('HSET', KEYS[1], 'x', cmsgpack.pack(marks))",
        1,
        key("x"),
    )
    assert locks.run(send(give_up(A))) == 0
    assert marks(client, "x") == 1
    assert locks.run(send(give_up(A))) == 0  # once more: it has one mark all the same
    assert marks(client, "x") == 1
    assert locks.lock("x").acquire(20).release()


def connections(client: redis.Redis) -> set[str]:
    """But for listeners."""
    return {each["id"] for each in client.client_list() if each["sub"] == "0"}


@pytest.mark.parametrize("kind", ["url", "client"])
def test_a_network_that_holds_an_acquire_back(
    connect: Connect, api: Api, redis_server: Redis, client: redis.Redis, kind: str
) -> None:
    """The whole way: it is given up at its limit, abandoned over a new connection, and then it arrives."""
    with Proxy(redis_server.port) as proxy:
        address = redis_server.url.replace(str(redis_server.port), str(proxy.port))
        theirs = None
        if kind == "client":
            theirs = (redis.Redis if api.side == "threads" else redis.asyncio.Redis).from_url(address)
        mine = connections(client)
        locks = connect(theirs or address, ttl=TTL)
        assert locks.lock("x").acquire(20).release()
        eventually(lambda: client.pubsub_channels("leasehold:*"))
        through = connections(client) - mine
        assert through
        proxy.blackhole()
        with pytest.raises(StoreUnavailable):
            locks.lock("x").try_acquire(timeout=0.5)
        other = connect(redis_server.url)
        if theirs is not None:  # from now on it connects by another way
            pool: Any = theirs.connection_pool
            pool.connection_kwargs["port"] = redis_server.port
            for each in (*pool._available_connections, *pool._in_use_connections):
                each.port = redis_server.port
        else:
            locks.driver._transport.make = other.driver._transport.make
        eventually(lambda: not core(locks.real).unsettled)  # the keeper has abandoned it
        assert marks(client, "x") == 1
        proxy.all_well()
        eventually(lambda: not through & connections(client))  # the server has done what was held back, and hung up
        assert other.leases() == []
        if theirs is not None:
            locks.close()
            api.call(theirs.close if api.side == "threads" else theirs.aclose)  # type: ignore[attr-defined]
