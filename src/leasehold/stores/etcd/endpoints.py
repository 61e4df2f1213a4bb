"""Which member of the cluster is used, and as which user: what the transports of threads and of tasks share."""

from __future__ import annotations

import ssl
from functools import cached_property

from hpack import NeverIndexedHeaderTuple

from ...errors import StoreNotReady
from . import wire
from .errors import GrpcError
from .http2 import Headers
from .url import EtcdAddress

ONE_OF_SEVERAL = 1.0
"""How long a member may take to accept a connection, when there are others to try."""
_UNAVAILABLE = 14


class Endpoints:
    """``current`` changes when a member fails; connections to any other member are not used again."""

    def __init__(self, address: EtcdAddress) -> None:
        self.address = address
        self.current = address.hosts[0]
        self.token = b""

    @cached_property
    def context(self) -> ssl.SSLContext | None:
        """Made at the first connection: it reads files."""
        try:
            return self.address.context()
        except OSError as error:
            raise StoreNotReady(f"cannot load the certificate or key that the etcd URL names: {error}") from error

    @property
    def server_name(self) -> str:
        return self.address.server_name or self.current[0]

    def blame(self, host: tuple[str, int]) -> None:
        """This member failed: use the next one from now on."""
        if host == self.current:
            hosts = self.address.hosts
            self.current = hosts[(hosts.index(host) + 1) % len(hosts)]

    def blame_for(self, error: BaseException, host: tuple[str, int]) -> None:
        """Use another member if that may do better."""
        if not isinstance(error, GrpcError) or error.code == _UNAVAILABLE:
            self.blame(host)

    def connect_limit(self, limit: float) -> float:
        return max(0.001, limit if len(self.address.hosts) == 1 else min(limit, ONE_OF_SEVERAL))

    @property
    def needs_login(self) -> bool:
        return bool(self.address.user) and not self.token

    def login(self) -> wire.EtcdCall:
        return wire.authenticate(self.address.user, self.address.password)

    def logged_in(self, messages: list[bytes]) -> None:
        self.token = wire.first(wire.read(messages[0]), 2, b"")

    def logged_out(self, token: bytes) -> None:
        """Log in again before the next call, unless another thread has logged in since."""
        if token == self.token:
            self.token = b""

    def headers(self, method: bytes) -> Headers:
        headers = [
            (b":method", b"POST"),
            (b":scheme", b"https" if self.address.tls else b"http"),
            (b":path", method),
            (b":authority", (self.address.server_name or "{}:{}".format(*self.current)).encode()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            (b"hasleader", b"true"),  # a member that has lost the others says so at once
        ]
        if self.token and method != wire.AUTHENTICATE:
            headers.append(NeverIndexedHeaderTuple(b"token", self.token))
        return headers
