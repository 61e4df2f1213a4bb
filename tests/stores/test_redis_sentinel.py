"""Whom the Sentinels say is the primary, and which of them to believe; where clients that ask Sentinels connect."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import ConnectionError as RedisConnectionError

import leasehold
from leasehold import aio
from leasehold.errors import StoreNotReady, StoreUnavailable
from leasehold.stores.redis.clients import address_of
from leasehold.stores.redis.sentinel import AskSentinel, ConnectPrimary, Sentinels
from leasehold.stores.redis.url import RedisAddress, parse
from servers.redis import Redis
from servers.redis_ensembles import SentinelSetup

HOSTS = ("one", 1), ("two", 2), ("three", 3)


@contextmanager
def sentinel(names: int | None) -> Iterator[int]:
    """The port of one that names the server of this port as the primary, or hangs."""

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    port = str(names).encode()
    reply = b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%b\r\n" % (len(port), port)  # to SENTINEL GET-MASTER-ADDR-BY-NAME

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # who asked may have gone meanwhile
            while connection.recv(4096):
                if names is not None:
                    connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)


def take(side: str, url: str, **options: Any) -> None:
    """A lease. Of a machine that stands still now and then, in more than one go."""

    async def ask() -> None:
        async with aio.connect(url, **options) as locks:
            await (await locks.lock("a").acquire(timeout=60)).release()

    if side == "asyncio":
        return asyncio.run(ask())
    with leasehold.connect(url, **options) as locks:
        locks.lock("a").acquire(timeout=60).release()
    return None


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_a_sentinel_that_is_behind_is_not_the_last_word(start_server: Any, side: str) -> None:
    primary = start_server(Redis)
    replica = start_server(Redis, "--replicaof", "127.0.0.1", str(primary.port))
    with ExitStack() as stack:
        for wrong in 1, replica.port:  # dead, and no primary
            behind, right = (stack.enter_context(sentinel(names)) for names in (wrong, primary.port))
            take(side, f"redis+sentinel://127.0.0.1:{behind},127.0.0.1:{right}/m/0")


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_sentinels_that_hang_do_not_use_up_the_limit(start_server: Any, side: str) -> None:
    primary = start_server(Redis)
    with sentinel(None) as first, sentinel(None) as second, sentinel(primary.port) as right:
        hosts = ",".join(f"127.0.0.1:{port}" for port in (first, second, right))
        take(side, f"redis+sentinel://{hosts}/m/0", ttl=2)


def sentinels() -> Sentinels:
    return Sentinels(RedisAddress("sentinel", HOSTS, "", "m", False, 0, {}, {}), {})


def test_each_has_its_share_and_the_primary_too() -> None:
    steps = sentinels().connect(4.0)
    asked = [next(steps), *(steps.throw(RedisConnectionError("away")) for _ in range(2))]
    assert all(isinstance(where, AskSentinel) for where in asked)
    assert [where.host for where in asked] == ["one", "two", "three"]
    assert asked[0].limit <= 1.0
    named = steps.send(("primary", 6379))
    assert isinstance(named, ConnectPrimary)
    assert named.limit <= 4.0
    with pytest.raises(RedisConnectionError, match="refused"):
        steps.throw(RedisConnectionError("refused"))


def test_the_one_that_was_right_is_asked_first() -> None:
    known = sentinels()
    steps = known.connect(4.0)
    assert next(steps).host == "one"
    assert steps.send(("old", 1)).host == "old"
    assert steps.throw(RedisConnectionError("it is a replica")).host == "two"
    assert steps.send(("new", 2)).host == "new"
    with pytest.raises(StopIteration) as stop:
        steps.send("connection")
    assert stop.value.value == "connection"
    assert next(known.connect(4.0)).host == "two"


def test_a_primary_that_will_not_have_us_is_the_last_word() -> None:
    steps = sentinels().connect(4.0)
    next(steps)
    steps.send(("primary", 6379))
    with pytest.raises(redis.AuthenticationError):
        steps.throw(redis.AuthenticationError("WRONGPASS invalid username-password pair"))


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_a_wrong_password_is_said_at_once(start_server: Any, side: str) -> None:
    primary = start_server(Redis)
    redis.Redis(port=primary.port).config_set("requirepass", "right")
    with sentinel(primary.port) as first, sentinel(None) as second:
        with pytest.raises(StoreNotReady, match="password"):
            take(side, f"redis+sentinel://:wrong@127.0.0.1:{first},127.0.0.1:{second}/m/0")


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_a_wrong_password_for_the_sentinels_is_said_at_once(start_server: Any, side: str) -> None:
    server = start_server(Redis)
    redis.Redis(port=server.port).config_set("requirepass", "right")
    with pytest.raises(StoreNotReady, match="password") as caught:
        take(side, f"redis+sentinel://127.0.0.1:{server.port}/m?sentinel_password=S3CRET")
    assert not [each for each in chain(caught.value) if "S3CRET" in f"{each!r} {each}"]


def test_the_password_for_the_sentinels_is_in_no_exception() -> None:
    with leasehold.connect("redis+sentinel://127.0.0.1:1/m?sentinel_password=S3CRET") as locks:
        with pytest.raises(StoreUnavailable) as caught:
            locks.lock("a").try_acquire(timeout=1)
    assert not [each for each in chain(caught.value) if "S3CRET" in f"{each!r} {each}"]


def test_the_passwords_of_one_are_not_told_the_other() -> None:
    options = {"db": 1, "username": "u", "password": "p", "credential_provider": object(), "client_name": "c"}
    address = parse("redis+sentinel://h/m?sentinel_password=s")
    assert Sentinels(address, options).own_options == {"client_name": "c", "password": "s"}


# Where a client of asyncio connects.


def test_a_client_that_asks_sentinels() -> None:
    asked = Sentinel([("s1", 1), ("s2", 2)], sentinel_kwargs={"password": "theirs"})
    address = address_of(asked.master_for("main", password="ours", db=3))
    assert (address.kind, address.hosts, address.master) == ("sentinel", (("s1", 1), ("s2", 2)), "main")
    assert (address.options["password"], address.options["db"], address.tls) == ("ours", 3, False)
    assert address.sentinel_options == {"password": "theirs"}


def test_other_clients() -> None:
    plain = address_of(redis.asyncio.Redis(connection_pool=redis.asyncio.ConnectionPool(password="p")))
    assert (plain.kind, plain.hosts) == ("single", (("localhost", 6379),))
    tls = address_of(redis.asyncio.Redis(host="h", port=7, ssl=True))
    assert (tls.hosts, tls.tls) == ((("h", 7),), True)
    assert address_of(redis.asyncio.Redis(unix_socket_path="/s")).path == "/s"


def test_a_client_that_does_not_tell() -> None:
    class Odd(redis.asyncio.ConnectionPool):
        pass

    with pytest.raises(StoreUnavailable, match="does not show its host and port"):
        address_of(redis.asyncio.Redis(connection_pool=Odd(password="p")))


def test_what_such_a_client_holds_is_given_back_at_exit(redis_sentinels: SentinelSetup) -> None:
    """In a process of its own, which ends without closing anything, and has time for that."""
    code = """
import asyncio, sys
from redis.asyncio.sentinel import Sentinel
from leasehold import aio
from leasehold.runtime import hooks

hooks.EXIT_LIMIT = 30.0

async def hold():
    global locks, lease
    locks = aio.connect(Sentinel([("127.0.0.1", int(sys.argv[1]))]).master_for("mymaster"))
    lease = await locks.lock("held at exit", ttl=600).acquire(timeout=60)

asyncio.run(hold())
print(lease.token)
"""
    command = [sys.executable, "-W", "ignore", "-c", code, str(redis_sentinels.sentinels[0].port)]
    token = int(subprocess.run(command, check=True, timeout=100, stdout=subprocess.PIPE).stdout)
    primary = redis_sentinels.leader()
    client = redis.Redis(port=primary.port)
    assert client.hget("leasehold:{:held at exit}", "t") == b"%d" % token
    assert not client.hget("leasehold:{:held at exit}", "h")
