"""gRPC over HTTP/2, without I/O: the library ``h2`` speaks the protocol, this module knows what gRPC makes of it.

``Http2`` takes the bytes that were received and gives the bytes to send; connections move them. An instance that is in
any state may be dropped: after a fork, or when a signal handler raised in the middle of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

from h2.config import H2Configuration
from h2.connection import H2Connection
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
_UNAVAILABLE = 14


class BrokenHttp2(ConnectionError):
    """The connection is of no more use."""


class Http2:
    """One connection, seen from the client: one call after the other."""

    def __init__(self) -> None:
        config = H2Configuration(
            header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self._h2 = H2Connection(config)
        self._h2.initiate_connection()
        self._h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: WINDOW, SettingCodes.ENABLE_PUSH: 0})
        self._h2.increment_flow_control_window(WINDOW - _FIRST_WINDOW)
        self.exhausted = False
        """Whether the connection takes no new calls."""
        self.over = True
        """Whether the call has been answered."""
        self._stream = 0
        self._unsent, self._ends = b"", False
        self._arrived, self._headers = bytearray(), dict[bytes, bytes]()
        self._error: GrpcError | None = None

    def call(self, headers: Headers, messages: Sequence[bytes], *, end: bool = True) -> None:
        """Begin a call. Raises BrokenHttp2."""
        try:
            self._stream = self._h2.get_next_available_stream_id()
            self._h2.send_headers(self._stream, headers)
        except H2Error as error:
            raise BrokenHttp2(f"the connection takes no new call: {error}") from error
        self.over, self._unsent, self._error = False, b"", None
        self._arrived, self._headers = bytearray(), {}
        self.send(messages, end=end)

    def send(self, messages: Sequence[bytes], *, end: bool = False) -> None:
        if self.over:
            raise BrokenHttp2("the call is over")
        self._unsent += b"".join(b"\0" + len(message).to_bytes(4, "big") + message for message in messages)
        self._ends = end
        self._pump()

    def to_send(self) -> bytes:
        return self._h2.data_to_send()

    def receive(self, data: bytes) -> list[bytes]:
        """The messages that the bytes complete. Raises GrpcError if the server has refused the call, BrokenHttp2."""
        found: list[bytes] = []
        try:
            for event in self._h2.receive_data(data):
                self._on(event, found)
        except (H2Error, ValueError, IndexError) as error:
            raise BrokenHttp2(f"the server does not speak HTTP/2: {error or type(error).__name__}") from error
        if self._error is not None:
            raise self._error
        return found

    def _on(self, event: Event, found: list[bytes]) -> None:
        match event:
            case DataReceived():
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
                self._take_messages(event.data or b"", found)
            case ResponseReceived() | TrailersReceived():
                self._headers.update((bytes(name), bytes(value)) for name, value in event.headers or ())
            case StreamEnded():
                self._end()
            case StreamReset():
                self._fail(f"the server has reset the call (code {event.error_code})")
            case ConnectionTerminated():  # h2 reads no frame after it, so no answer to what is under way either
                self.exhausted = True
                self._fail("the server is shutting down the connection")
            case WindowUpdated() | RemoteSettingsChanged() if not self.over:
                with suppress(StreamClosedError):  # its end is among the events that follow
                    self._pump()

    def _take_messages(self, data: bytes, found: list[bytes]) -> None:
        arrived = self._arrived
        arrived += data
        while len(arrived) >= 5 and len(arrived) >= 5 + (size := int.from_bytes(arrived[1:5], "big")):
            found.append(bytes(arrived[5 : 5 + size]))
            del arrived[: 5 + size]

    def _end(self) -> None:
        self.over = True
        status = self._headers.get(b"grpc-status", b"")
        if status != b"0":
            code = int(status) if status.isdigit() else _UNAVAILABLE
            said = self._headers.get(b"grpc-message", b"").decode("utf-8", "replace")
            http = self._headers.get(b":status", b"").decode("ascii", "replace")
            self._error = GrpcError(code, said or f"the answer is not from etcd (HTTP status {http or 'missing'})")

    def _fail(self, why: str) -> None:
        if not self.over:
            self.over, self._error = True, GrpcError(_UNAVAILABLE, why)

    def _pump(self) -> None:
        """Send as much as the windows allow."""
        while self._unsent or self._ends:
            window = min(self._h2.local_flow_control_window(self._stream), self._h2.max_outbound_frame_size)
            if window <= 0 and self._unsent:
                return
            piece, self._unsent = self._unsent[:window], self._unsent[window:]
            last = self._ends and not self._unsent
            self._h2.send_data(self._stream, piece, end_stream=last)
            self._ends = self._ends and not last
