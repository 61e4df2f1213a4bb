"""gRPC over HTTP/2 against a peer that does what a server or a proxy may do at any time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from etcd_tools import A, Process
from h2.config import H2Configuration
from h2.connection import H2Connection

import leasehold
from leasehold import aio
from leasehold.core import clock
from leasehold.core.protocol import Busy
from leasehold.stores.etcd.errors import GrpcError
from leasehold.stores.etcd.http2 import Http2
from leasehold.stores.etcd.subscriptions import TAKING, Interest
from leasehold.stores.etcd.tasks import TaskTurns
from servers.etcd import Etcd
from servers.proxy import Proxy

HEADERS = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"), (b":authority", b"a")]


@pytest.fixture
def server(etcd_server: Etcd) -> Etcd:
    return etcd_server


class Peer:
    """A client, and the server's end of its connection."""

    def __init__(self) -> None:
        self.client = Http2()
        self.h2 = H2Connection(H2Configuration(client_side=False))
        self.h2.initiate_connection()
        self.exchange()

    def exchange(self) -> Any:
        """What each has to say, in one chunk. Returns what the client makes of it."""
        if out := self.client.to_send():
            self.h2.receive_data(out)
        return self.client.receive(self.h2.data_to_send())


@pytest.mark.parametrize("refused", [False, True])
def test_a_call_that_ends_in_the_chunk_that_lets_it_go_on(refused: bool) -> None:
    """Its window is widened and it is over: the next call on the connection does not fail for it."""
    peer = Peer()
    peer.client.call(HEADERS, [b"x" * 200_000])
    peer.h2.receive_data(peer.client.to_send())
    for stream in (None, 1):
        peer.h2.increment_flow_control_window(100_000, stream)
    if refused:
        peer.h2.send_headers(1, [(":status", "200"), ("grpc-status", "8")], end_stream=True)
    peer.h2.reset_stream(1, 8)
    with pytest.raises(GrpcError) as ended:
        peer.exchange()
    assert ended.value.code == (8 if refused else 14)
    assert peer.client.over
    peer.client.call(HEADERS, [b"y"])
    peer.h2.receive_data(peer.client.to_send())
    peer.h2.send_headers(3, [(":status", "200"), ("grpc-status", "0")], end_stream=True)
    assert peer.exchange() == []
    assert peer.client.over


@pytest.mark.server
def test_tasks_wait_for_the_room_that_the_server_allows(start_server: Any) -> None:
    """Nothing fails because many tasks work at once, and renewals go first."""
    server = start_server(Etcd, max_concurrent_streams=3)

    async def main() -> None:
        async with aio.connect(server.url, ttl=4) as locks:
            held = await locks.lock("held").acquire()

            async def one(number: int) -> None:
                for _ in range(5):
                    lease = await locks.lock(f"n{number}").acquire()
                    assert await lease.release()

            await asyncio.gather(*(one(number) for number in range(40)))
            assert locks.counters().renewal_failures == 0
            assert await held.release()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_who_waits_for_a_turn_is_called_in_order() -> None:
    """Renewals take none. One that is called and does not come makes way for the next."""

    async def main() -> None:
        turns = TaskTurns(1)
        came: list[str] = []

        async def come(name: str) -> None:
            await turns.take(30)
            came.append(name)

        await come("first")
        tasks = {name: asyncio.ensure_future(come(name)) for name in ("gone", "second", "third")}
        await asyncio.sleep(0)
        turns.over(None)
        tasks["gone"].cancel()
        await asyncio.wait_for(tasks["second"], 5)
        with pytest.raises(TimeoutError, match="no connection was free"):
            await turns.take(0.01)
        turns.over(None)
        await asyncio.wait_for(tasks["third"], 5)
        assert came == ["first", "second", "third"]

    asyncio.run(main())


def connections_to(port: int) -> int:
    fields = map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
    return sum(int(each[2].rpartition(":")[2], 16) == port and each[3] == "01" for each in fields)


@pytest.mark.server
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux tells of connections there")
def test_connections_that_nobody_needs_any_more_are_closed(
    server: Etcd, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(server.port) as proxy:
        with leasehold.connect(f"etcd://127.0.0.1:{proxy.port}", namespace=namespace) as locks:
            proxy.delay(0.3)
            threads = [threading.Thread(target=locks.inspect, args=("x",)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert connections_to(proxy.port) == 6
            proxy.all_well()
            assert locks.inspect("x") is None
            assert connections_to(proxy.port) == 6, "they may be needed again"
            now = clock.now
            monkeypatch.setattr(clock, "now", lambda: now() + 10.1)
            assert locks.inspect("x") is None
            assert connections_to(proxy.port) == 1
        assert connections_to(proxy.port) == 0


@pytest.mark.server
def test_what_nobody_waits_for_any_more_is_not_watched(server: Etcd, namespace: str) -> None:
    """It was wanted of a stream that broke, and its attempt ended before there was another."""
    process = Process(server.url, namespace)
    with process.locks:
        interest = Interest(TAKING, "x", b"k", b"l", 1)
        process.driver._wanted.put((A, Busy(None, 1, None, (interest,))))
        sent: list[Any] = []
        process.driver._want(SimpleNamespace(send=sent.append))
        assert not sent
        assert not process.driver._subscriptions._by_attempt
