"""A plain connection: enough to ask a server something without its driver."""

import socket
from typing import Self

HOST = "127.0.0.1"


class Wire:
    """No single wait is longer than `timeout`; a connection that ends too early is EOFError."""

    def __init__(self, port: int, timeout: float, host: str = HOST) -> None:
        self._socket = socket.create_connection((host, port), timeout)
        self._stream = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self, size: int) -> bytes:
        """Exactly so many bytes."""
        return self._whole(data := self._stream.read(size), len(data) == size)

    def line(self) -> bytes:
        """A line with its end."""
        return self._whole(data := self._stream.readline(), data.endswith(b"\n"))

    def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        return self._stream.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def _whole(self, data: bytes, whole: bool) -> bytes:
        if not whole:
            raise EOFError(f"the connection ended after {data!r}")
        return data
