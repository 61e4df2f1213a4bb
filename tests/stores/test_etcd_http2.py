"""gRPC over HTTP/2 against a peer that does what a server or a proxy may do at any time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from etcd_tools import A, Process
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes

from leasehold import aio
from leasehold.core.protocol import Busy
from leasehold.stores.etcd import transport_tasks, wire
from leasehold.stores.etcd.errors import GrpcError
from leasehold.stores.etcd.http2 import GrpcEnd, Http2
from leasehold.stores.etcd.subscriptions import TAKING, Interest
from servers.etcd import Etcd

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
    """Its window is widened and it is over: other calls on the connection are not to fail for it."""
    peer = Peer()
    big, small = peer.client.call(HEADERS, [b"x" * 200_000]), peer.client.call(HEADERS, [b"y"])
    peer.h2.receive_data(peer.client.to_send())
    for stream in (None, big):
        peer.h2.increment_flow_control_window(100_000, stream)
    if refused:
        peer.h2.send_headers(big, [(":status", "200"), ("grpc-status", "8")], end_stream=True)
    peer.h2.reset_stream(big, 8)
    peer.h2.send_headers(small, [(":status", "200"), ("grpc-status", "0")], end_stream=True)
    ended = {event.stream: event.error for event in peer.exchange() if isinstance(event, GrpcEnd)}
    assert isinstance(ended[big], GrpcError)
    assert ended[small] is None


def test_room_is_what_the_server_allows() -> None:
    peer = Peer()
    peer.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    peer.exchange()
    assert peer.client.room == 2
    stream = peer.client.call(HEADERS, [b"y"])
    assert peer.client.room == 1
    peer.client.cancel(stream)
    assert peer.client.room == 2


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


def test_who_waits_for_room_is_called_in_order() -> None:
    """Renewals first, new acquires last; one that was called and does not come makes way for the next."""

    async def main() -> None:
        connection = transport_tasks.TaskConnection(("127.0.0.1", 1))
        connection.connection_made(SimpleNamespace(is_closing=lambda: False, write=lambda data: None))
        peer = H2Connection(H2Configuration(client_side=False))
        peer.initiate_connection()
        peer.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 1})
        connection.data_received(peer.data_to_send())
        came: list[str] = []

        async def come(name: str, call: wire.EtcdCall) -> int:
            if not connection.has_room():
                await connection.wait_for_room(call)
            came.append(name)
            return connection.begin(HEADERS, (), lambda event: None, end=True)

        def task(name: str, **marks: bool) -> asyncio.Task[int]:
            return asyncio.ensure_future(come(name, wire.lease_revoke(1)._replace(**marks)))

        stream = await task("first")
        new, claim, gone = task("new", patient=True), task("claim"), task("gone", urgent=True)
        urgent = task("urgent", urgent=True)
        await asyncio.sleep(0)
        assert came == ["first"]
        connection.give_up(stream)
        gone.cancel()
        for waiting in (urgent, claim, new):
            connection.give_up(await asyncio.wait_for(waiting, 5))
        assert came == ["first", "urgent", "claim", "new"]

    asyncio.run(main())


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
