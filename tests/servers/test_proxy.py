"""Each mode of the proxy, before a real server, on connections that were open already and on new ones."""

import contextlib
import gc
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from . import redis
from .process import wait_until
from .proxy import Proxy
from .redis import Redis
from .wire import HOST

pytestmark = pytest.mark.server

SOON = 0.3  # how long to wait before saying that nothing comes


@pytest.fixture
def server(start_server: Callable[..., Any]) -> Redis:
    made: Redis = start_server(Redis)
    return made


@pytest.fixture
def proxy(server: Redis) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    """A connection through the proxy that has been used, so that it is known to stand."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(100) == b"+PONG\r\n"
        yield connection


def nothing_comes(client: socket.socket) -> bool:
    readable, _, _ = select.select([client], [], [], SOON)
    return not readable


def test_proxy_passes_everything_on_at_first(proxy: Proxy) -> None:
    assert redis.ask(proxy.port, "PING") == b"PONG"
    value = "x" * 3_000_000
    assert redis.ask(proxy.port, "ECHO", value, timeout=60) == value.encode()


def test_delay_is_added_in_each_direction(proxy: Proxy, client: socket.socket) -> None:
    proxy.delay(0.2)
    began = time.monotonic()
    client.sendall(b"PING\r\n")
    assert client.recv(100) == b"+PONG\r\n"
    assert 0.4 <= time.monotonic() - began < 10

    proxy.all_well()

    def at_once() -> bool:
        began = time.monotonic()
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"
        return time.monotonic() - began < 0.4

    wait_until(at_once, "an answer without the delay")  # the machine may be slow for a while, the proxy is not


def test_a_blackhole_keeps_everything_back_until_it_is_gone(server: Redis, proxy: Proxy, client: socket.socket) -> None:
    proxy.blackhole()
    client.sendall(b"INCR n\r\n")
    assert nothing_comes(client)
    with pytest.raises(TimeoutError):
        redis.ask(proxy.port, "PING", timeout=SOON)
    assert redis.ask(server.port, "GET", "n") is None

    proxy.all_well()  # an old write arrives late
    assert client.recv(100) == b":1\r\n"
    assert redis.ask(server.port, "GET", "n") == b"1"


def test_proxy_that_cuts_only_answers_lets_requests_through(server: Redis, proxy: Proxy, client: socket.socket) -> None:
    proxy.only("to_server")
    client.sendall(b"INCR n\r\n")
    wait_until(lambda: redis.ask(server.port, "GET", "n") == b"1", "the server to do it")
    assert nothing_comes(client)

    proxy.all_well()
    assert client.recv(100) == b":1\r\n"


def test_proxy_that_cuts_only_requests_lets_answers_through(server: Redis, proxy: Proxy, client: socket.socket) -> None:
    client.sendall(b"SUBSCRIBE news\r\n")
    assert client.recv(100).startswith(b"*3\r\n$9\r\nsubscribe")
    proxy.only("to_client")
    with socket.create_connection(("127.0.0.1", proxy.port)) as speaker:
        speaker.sendall(b"INCR n\r\n")
        assert redis.ask(server.port, "PUBLISH", "news", "hello") == 1
        assert b"hello" in client.recv(100)
        assert nothing_comes(speaker)
        assert redis.ask(server.port, "GET", "n") is None


def test_reset_breaks_open_connections_and_new_ones(proxy: Proxy, client: socket.socket) -> None:
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    with pytest.raises(ConnectionResetError):
        redis.ask(proxy.port, "PING")

    proxy.all_well()
    assert redis.ask(proxy.port, "PING") == b"PONG"


def test_what_a_blackhole_kept_is_lost_by_a_reset(server: Redis, proxy: Proxy, client: socket.socket) -> None:
    proxy.blackhole()
    client.sendall(b"INCR n\r\n")
    assert nothing_comes(client)
    proxy.reset()
    proxy.all_well()
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert redis.ask(server.port, "GET", "n") is None


def test_a_server_that_died_is_seen_through_the_proxy(server: Redis, proxy: Proxy, client: socket.socket) -> None:
    server.kill()
    assert client.recv(100) == b""
    with pytest.raises(ConnectionResetError):
        redis.ask(proxy.port, "PING")

    server.start()
    assert redis.ask(proxy.port, "PING") == b"PONG"


def test_a_closed_proxy_ends_its_connections(server: Redis) -> None:
    with Proxy(server.port) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port), timeout=60)
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"
    with client:
        assert client.recv(100) == b""
    with pytest.raises(ConnectionRefusedError):
        redis.ask(proxy.port, "PING")


@pytest.mark.parametrize("filled", [1, 200])
def test_a_connection_that_is_about_to_end_leaves_no_socket(filled: int) -> None:
    """One end has closed, the other does not read: the proxy still has something to get rid of when it is closed, in
    the kernel or, filled time and again, of its own."""
    with socket.create_server((HOST, 0)) as server:
        proxy = Proxy(server.getsockname()[1]).start()
        client = socket.create_connection((HOST, proxy.port))
        accepted, _ = server.accept()
        client.setblocking(False)
        for _ in range(filled):
            with contextlib.suppress(BlockingIOError):
                while True:
                    client.send(bytes(65536))
            time.sleep(0.001)
        client.close()
        proxy.close()
        accepted.close()
    gc.collect()  # a socket that was left open is an error of this test
