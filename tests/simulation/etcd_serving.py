"""The model of etcd as a server: gRPC over HTTP/2 on a port of this machine, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from .etcd_model import EtcdModel, Refusal, Stream

LOOK = 0.25
"""How often leases that have run out are ended, in seconds."""
HEADERS = [(b":status", b"200"), (b"content-type", b"application/grpc")]


class Served:
    """``with Served() as server``: ``server.url``, and ``server.do`` for a look into the model."""

    def __init__(self) -> None:
        self.model = EtcdModel(time.monotonic)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="etcd-model")
        self.port = 0

    @property
    def url(self) -> str:
        return f"etcd://127.0.0.1:{self.port}"

    def do(self, function: Callable[[EtcdModel], Any]) -> Any:
        async def call() -> Any:
            return function(self.model)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(20)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    async def _start(self) -> None:
        self._connections: set[_Connection] = set()
        self._server = await self._loop.create_server(lambda: _Connection(self.model, self._connections), "127.0.0.1")
        self.port = self._server.sockets[0].getsockname()[1]
        self._expiring = self._loop.create_task(self._expire())

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            self.model.expire()

    async def _stop(self) -> None:
        self._expiring.cancel()
        self._server.close()
        for each in list(self._connections):
            each.close()
        await asyncio.sleep(0.01)


class _Connection(asyncio.Protocol):
    def __init__(self, model: EtcdModel, connections: set[_Connection]) -> None:
        self._model = model
        self._connections = connections
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self._http = h2.connection.H2Connection(config)
        self._transport: Any = None
        self._methods: dict[int, bytes] = {}
        self._arrived: dict[int, bytearray] = {}
        self._watching: dict[int, Stream] = {}
        self._unsent: dict[int, bytearray] = {}
        self._last: dict[int, list[tuple[bytes, bytes]]] = {}

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._connections.add(self)
        self._http.initiate_connection()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        for stream in self._watching.values():
            stream.close()

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._http.receive_data(data)
        except h2.exceptions.ProtocolError:
            self._flush()
            self.close()
            return
        for event in events:
            self._on(event)
        for number in list(self._unsent):
            self._pump(number)
        self._flush()

    def _on(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                number = event.stream_id
                self._methods[number] = dict(event.headers)[b":path"]  # type: ignore[index]
                self._arrived[number], self._unsent[number] = bytearray(), bytearray()
                if self._methods[number].endswith(b"/Watch"):
                    self._http.send_headers(number, HEADERS)
                    self._watching[number] = Stream(self._model, lambda message: self._tell(number, message))
            case h2.events.DataReceived():
                self._arrived[event.stream_id] += event.data
                self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if event.stream_id in self._watching:
                    for message in self._messages(event.stream_id):
                        self._watching[event.stream_id].ask(message)
            case h2.events.StreamEnded():
                if event.stream_id not in self._watching:
                    self._answer(event.stream_id)
            case h2.events.StreamReset():
                self._forget(event.stream_id)

    def _messages(self, number: int) -> list[bytes]:
        arrived, found = self._arrived[number], []
        while len(arrived) >= 5 and len(arrived) >= 5 + (size := int.from_bytes(arrived[1:5], "big")):
            found.append(bytes(arrived[5 : 5 + size]))
            del arrived[: 5 + size]
        return found

    def _answer(self, number: int) -> None:
        status, said = 0, ""
        try:
            answers = self._model.call(self._methods[number], self._messages(number))
        except Refusal as refusal:
            answers, status, said = [], refusal.code, refusal.said
        trailers = [(b"grpc-status", b"%d" % status), (b"grpc-message", said.encode())]
        self._http.send_headers(number, HEADERS)
        for answer in answers:
            self._unsent[number] += b"\0" + len(answer).to_bytes(4, "big") + answer
        self._last[number] = trailers
        self._pump(number)

    def _tell(self, number: int, message: bytes) -> None:
        self._unsent[number] += b"\0" + len(message).to_bytes(4, "big") + message
        self._pump(number)
        self._flush()

    def _pump(self, number: int) -> None:
        unsent = self._unsent[number]
        while unsent:
            size = min(len(unsent), self._http.local_flow_control_window(number), self._http.max_outbound_frame_size)
            if size <= 0:
                return
            self._http.send_data(number, bytes(unsent[:size]))
            del unsent[:size]
        if (last := self._last.get(number)) is not None:
            self._http.send_headers(number, last, end_stream=True)
            self._forget(number)

    def _forget(self, number: int) -> None:
        for books in (self._methods, self._arrived, self._unsent, self._last):
            books.pop(number, None)  # type: ignore[attr-defined]
        if (stream := self._watching.pop(number, None)) is not None:
            stream.close()

    def _flush(self) -> None:
        if out := self._http.data_to_send():
            self._transport.write(out)
