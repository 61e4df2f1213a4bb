"""gRPC over HTTP/2, without I/O: the library ``h2`` speaks the protocol, this module knows what gRPC makes of it.

``Http2`` takes the bytes that were received and gives the bytes to send; transports move them. An instance that is in
any state may be dropped: after a fork, or when a signal handler raised in the middle of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import H2Error, StreamClosedError
from h2.settings import SettingCodes

from .errors import GrpcError

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

WINDOW = 1 << 24
"""Bytes that the server may send before it waits for us, on each stream and on the connection. h2 widens both."""
_FIRST_WINDOW = 65535
_MOST_STREAMS = 2**30
_UNAVAILABLE = 14


class BrokenHttp2(ConnectionError):
    """The connection is of no more use."""


class GrpcMessage(NamedTuple):
    """A whole message of a stream's answer."""

    stream: int
    body: bytes


class GrpcEnd(NamedTuple):
    """A stream is over; ``error`` is the server's answer when it refused the call."""

    stream: int
    error: GrpcError | None


GrpcEvent: TypeAlias = GrpcMessage | GrpcEnd


class _GrpcStream:
    __slots__ = ("arrived", "ends", "headers", "unsent")

    def __init__(self) -> None:
        self.arrived = bytearray()
        self.headers: dict[bytes, bytes] = {}
        self.unsent = b""
        self.ends = False


class Http2:
    """One connection, seen from the client."""

    def __init__(self) -> None:
        config = H2Configuration(
            header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self._h2 = H2Connection(config)
        self._streams: dict[int, _GrpcStream] = {}
        self._last = 0
        self._leaving = False
        self._h2.initiate_connection()
        self._h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: WINDOW, SettingCodes.ENABLE_PUSH: 0})
        self._h2.increment_flow_control_window(WINDOW - _FIRST_WINDOW)

    @property
    def exhausted(self) -> bool:
        """Whether the connection takes no new calls."""
        return self._leaving or self._last > _MOST_STREAMS

    @property
    def room(self) -> int:
        """How many more calls the server allows at the same time."""
        return self._h2.remote_settings.max_concurrent_streams - self._h2.open_outbound_streams

    def call(self, headers: Headers, messages: Sequence[bytes], *, end: bool = True) -> int:
        """Begin a call. Returns its stream. Raises BrokenHttp2."""
        try:
            stream = self._last = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream, headers)
        except H2Error as error:
            raise BrokenHttp2(f"the connection takes no new call: {error}") from error
        self._streams[stream] = _GrpcStream()
        self.send(stream, messages, end=end)
        return stream

    def send(self, stream: int, messages: Sequence[bytes], *, end: bool = False) -> None:
        state = self._streams.get(stream)
        if state is None:
            raise BrokenHttp2("the stream is over")
        state.unsent += b"".join(b"\0" + len(message).to_bytes(4, "big") + message for message in messages)
        state.ends = end
        self._pump(stream)

    def cancel(self, stream: int) -> None:
        if self._streams.pop(stream, None) is not None:
            try:
                self._h2.reset_stream(stream, ErrorCodes.CANCEL)
            except H2Error:
                pass  # it is over already

    def to_send(self) -> bytes:
        return self._h2.data_to_send()

    def receive(self, data: bytes) -> list[GrpcEvent]:
        """What the bytes bring. Raises BrokenHttp2."""
        if not data:
            raise BrokenHttp2("the server has closed the connection")
        found: list[GrpcEvent] = []
        try:
            for event in self._h2.receive_data(data):
                self._on(event, found)
        except (H2Error, ValueError, IndexError) as error:
            raise BrokenHttp2(f"the server does not speak HTTP/2: {error or type(error).__name__}") from error
        return found

    def _on(self, event: Event, found: list[GrpcEvent]) -> None:
        match event:
            case ResponseReceived() | TrailersReceived():
                state = self._streams.get(event.stream_id or 0)
                if state is not None:
                    state.headers.update((bytes(name), bytes(value)) for name, value in event.headers or ())
            case DataReceived():
                self._arrived(event, found)
            case StreamEnded():
                self._end(event.stream_id or 0, found)
            case StreamReset():
                self._fail(event.stream_id or 0, f"the server has reset the call (code {event.error_code})", found)
            case ConnectionTerminated():  # h2 reads no frame after it, so no answer to what is under way either
                self._leaving = True
                for stream in list(self._streams):
                    self._fail(stream, "the server is shutting down the connection", found)
            case WindowUpdated() | RemoteSettingsChanged():
                for stream in list(self._streams):
                    with suppress(StreamClosedError):  # its end is among the events that follow
                        self._pump(stream)

    def _arrived(self, event: DataReceived, found: list[GrpcEvent]) -> None:
        stream = event.stream_id or 0
        self._h2.acknowledge_received_data(event.flow_controlled_length or 0, stream)
        state = self._streams.get(stream)
        if state is None:
            return  # it was cancelled
        arrived = state.arrived
        arrived += event.data or b""
        while len(arrived) >= 5 and len(arrived) >= 5 + (size := int.from_bytes(arrived[1:5], "big")):
            found.append(GrpcMessage(stream, bytes(arrived[5 : 5 + size])))
            del arrived[: 5 + size]

    def _end(self, stream: int, found: list[GrpcEvent]) -> None:
        state = self._streams.pop(stream, None)
        if state is None:
            return
        status = state.headers.get(b"grpc-status", b"")
        error = None
        if status != b"0":
            code = int(status) if status.isdigit() else _UNAVAILABLE
            said = state.headers.get(b"grpc-message", b"").decode("utf-8", "replace")
            http = state.headers.get(b":status", b"").decode("ascii", "replace")
            error = GrpcError(code, said or f"the answer is not from etcd (HTTP status {http or 'missing'})")
        found.append(GrpcEnd(stream, error))

    def _fail(self, stream: int, why: str, found: list[GrpcEvent]) -> None:
        if self._streams.pop(stream, None) is not None:
            found.append(GrpcEnd(stream, GrpcError(_UNAVAILABLE, why)))

    def _pump(self, stream: int) -> None:
        """Send as much as the windows allow."""
        state = self._streams[stream]
        while state.unsent or state.ends:
            window = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if window <= 0 and state.unsent:
                return
            piece, state.unsent = state.unsent[:window], state.unsent[window:]
            last = state.ends and not state.unsent
            self._h2.send_data(stream, piece, end_stream=last)
            state.ends = state.ends and not last
