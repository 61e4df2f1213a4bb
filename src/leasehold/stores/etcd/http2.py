"""gRPC over HTTP/2, without I/O: what a client of etcd needs of RFC 9113, and no more.

``Http2`` is told what was received and says what is to be sent; drivers move the bytes. Its requests use no compression
state of their own, so that a request is a header block made once, a message, and two frames. The answers' headers are
compressed; :mod:`hpack` reads them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from hpack import Decoder, Encoder, HPACKError

from .errors import Refused

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_END_STREAM = _ACK = 1
_END_HEADERS, _PADDED, _PRIORITY = 4, 8, 32
_INITIAL_WINDOW = 4
_WIDE = 2**31 - 1
_FRAME = 16384
_REFILL = 1 << 24


class Kind:
    """Of a frame."""

    DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9


class Broken(ConnectionError):
    """The connection is of no more use."""


class Message(NamedTuple):
    """A whole message of a stream's answer."""

    stream: int
    body: bytes


class Ended(NamedTuple):
    """A stream is over; ``refused`` is why, when the server has refused the call."""

    stream: int
    refused: Refused | None


class _Stream:
    __slots__ = ("arrived", "eaten", "ends", "headers", "unsent", "window")

    def __init__(self, window: int) -> None:
        self.arrived = bytearray()
        self.eaten = 0
        self.headers: dict[bytes, bytes] = {}
        self.window = window
        self.unsent = b""
        self.ends = False


def header_block(method: bytes, authority: str, scheme: bytes, token: bytes) -> bytes:
    """The headers of a call. None of them enters the table of the server, so that a block can be used again."""
    headers = [
        (b":method", b"POST"),
        (b":scheme", scheme),
        (b":path", method),
        (b":authority", authority.encode()),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        (b"hasleader", b"true"),  # a member that has lost the others says so at once
    ]
    if token:
        headers.append((b"token", token))
    block: bytes = Encoder().encode([(name, value, True) for name, value in headers])
    return block


class Http2:
    """One connection, seen from the client."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._streams: dict[int, _Stream] = {}
        self._next = 1
        self._in = b""
        self._block = b""
        self._block_of: tuple[int, bool] | None = None
        self._window = 65535
        self._stream_window = 65535
        self._eaten = 0
        self.leaving = False
        """The server takes no new calls on this connection."""
        settings = struct.pack(">HI", _INITIAL_WINDOW, _WIDE)
        self._out = bytearray(_PREFACE + _frame(Kind.SETTINGS, 0, 0, settings))
        self._out += _frame(Kind.WINDOW, 0, 0, struct.pack(">I", _WIDE - 65535))

    @property
    def exhausted(self) -> bool:
        return self.leaving or self._next > 2**30

    def call(self, block: bytes, messages: tuple[bytes, ...], *, end: bool = True) -> int:
        """Begin a call; its stream."""
        stream, self._next = self._next, self._next + 2
        self._streams[stream] = _Stream(self._stream_window)
        self._out += _frame(Kind.HEADERS, _END_HEADERS, stream, block)
        self.send(stream, messages, end=end)
        return stream

    def send(self, stream: int, messages: tuple[bytes, ...], *, end: bool = False) -> None:
        state = self._streams[stream]
        for message in messages:
            state.unsent += b"\0" + struct.pack(">I", len(message)) + message
        state.ends = end
        self._pump(stream, state)

    def cancel(self, stream: int) -> None:
        if self._streams.pop(stream, None) is not None:
            self._out += _frame(Kind.RESET, 0, stream, struct.pack(">I", 8))

    def to_send(self) -> bytes:
        out = bytes(self._out)
        self._out.clear()
        return out

    def _pump(self, number: int, state: _Stream) -> None:
        """Send as much as the windows allow."""
        while state.unsent or state.ends:
            size = min(len(state.unsent), _FRAME, self._window, state.window)
            if size <= 0 and state.unsent:
                return
            piece, state.unsent = state.unsent[:size], state.unsent[size:]
            last = state.ends and not state.unsent
            self._out += _frame(Kind.DATA, _END_STREAM if last else 0, number, piece)
            self._window -= size
            state.window -= size
            if last:
                state.ends = False

    def receive(self, data: bytes) -> list[Message | Ended]:
        """What the bytes bring. Raises Broken."""
        if not data:
            raise Broken("the server has closed the connection")
        try:
            return self._receive(data)
        except (IndexError, ValueError, struct.error, HPACKError) as error:
            raise Broken(f"the server does not speak HTTP/2: {error or type(error).__name__}") from error

    def _receive(self, data: bytes) -> list[Message | Ended]:
        data = self._in + data if self._in else data
        found: list[Message | Ended] = []
        at, end = 0, len(data)
        while end - at >= 9:
            size = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if end - at < 9 + size:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + 9], "big") & _WIDE
            self._frame(kind, flags, stream, data[at + 9 : at + 9 + size], found)
            at += 9 + size
        self._in = data[at:]
        return found

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes, found: list[Message | Ended]) -> None:
        match kind:
            case Kind.DATA:
                self._data(flags, stream, payload, found)
            case Kind.HEADERS:
                payload = _unpadded(flags, payload)
                self._block = payload[5:] if flags & _PRIORITY else payload
                self._block_of = (stream, bool(flags & _END_STREAM))
                if flags & _END_HEADERS:
                    self._headers(found)
            case Kind.CONTINUATION:
                self._block += payload
                if flags & _END_HEADERS:
                    self._headers(found)
            case Kind.RESET:
                if self._streams.pop(stream, None) is not None:
                    code = struct.unpack(">I", payload)[0]
                    found.append(Ended(stream, Refused(14, f"the server has reset the call (code {code})")))
            case Kind.SETTINGS:
                if not flags & _ACK:
                    self._settings(payload)
            case Kind.PING:
                if not flags & _ACK:
                    self._out += _frame(Kind.PING, _ACK, 0, payload)
            case Kind.GO_AWAY:
                self.leaving = True
                last = struct.unpack(">I", payload[:4])[0] & _WIDE
                for number in [each for each in self._streams if each > last]:
                    del self._streams[number]
                    found.append(Ended(number, Refused(14, "the server is shutting down the connection")))
            case Kind.WINDOW:
                self._widen(stream, struct.unpack(">I", payload)[0] & _WIDE)

    def _data(self, flags: int, stream: int, payload: bytes, found: list[Message | Ended]) -> None:
        # The connection and each stream have windows of their own, padding counts in both (RFC 9113, 6.9.1).
        self._eaten += len(payload)
        if self._eaten >= _REFILL:
            self._out += _frame(Kind.WINDOW, 0, 0, struct.pack(">I", self._eaten))
            self._eaten = 0
        state = self._streams.get(stream)
        if state is None:
            return  # we have given it up
        state.eaten += len(payload)
        if state.eaten >= _REFILL:
            self._out += _frame(Kind.WINDOW, 0, stream, struct.pack(">I", state.eaten))
            state.eaten = 0
        arrived = state.arrived
        arrived += _unpadded(flags, payload)
        while len(arrived) >= 5 and len(arrived) >= 5 + (size := int.from_bytes(arrived[1:5], "big")):
            found.append(Message(stream, bytes(arrived[5 : 5 + size])))
            del arrived[: 5 + size]
        if flags & _END_STREAM:
            self._end(stream, found)

    def _headers(self, found: list[Message | Ended]) -> None:
        if self._block_of is None:
            raise ValueError("bad frame: CONTINUATION without HEADERS")
        (stream, ends), self._block_of = self._block_of, None
        headers = self._decoder.decode(self._block, raw=True)
        state = self._streams.get(stream)
        if state is None:
            return
        for name, value in headers:
            state.headers[bytes(name)] = bytes(value)
        if ends:
            self._end(stream, found)

    def _end(self, stream: int, found: list[Message | Ended]) -> None:
        headers = self._streams.pop(stream).headers
        status = headers.get(b"grpc-status", b"")
        refused = None
        if status != b"0":
            code = int(status) if status.isdigit() else 14
            said = headers.get(b"grpc-message", b"").decode("utf-8", "replace")
            http = headers.get(b":status", b"").decode("ascii", "replace")
            refused = Refused(code, said or f"the answer is not from etcd (HTTP status {http or 'missing'})")
        found.append(Ended(stream, refused))

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload) - 5, 6):
            name, value = struct.unpack(">HI", payload[at : at + 6])
            if name == _INITIAL_WINDOW:
                change, self._stream_window = value - self._stream_window, value
                for number, state in list(self._streams.items()):
                    state.window += change
                    self._pump(number, state)
        self._out += _frame(Kind.SETTINGS, _ACK, 0, b"")

    def _widen(self, stream: int, more: int) -> None:
        if stream == 0:
            self._window += more
            for number, state in list(self._streams.items()):
                self._pump(number, state)
        elif stream in self._streams:
            self._streams[stream].window += more
            self._pump(stream, self._streams[stream])


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def _unpadded(flags: int, payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
