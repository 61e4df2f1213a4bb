"""Which member of the cluster to talk to, and as whom: what the connections of threads and of tasks share."""

from __future__ import annotations

import ssl
from functools import cached_property

from ...errors import StoreNotReady
from . import wire
from .errors import Refused
from .http2 import header_block
from .url import Address

ONE_OF_SEVERAL = 1.0
"""How long a member may take to accept a connection, when there are others to try."""
_UNAVAILABLE = 14


class Endpoints:
    """``current`` changes when a member fails us; connections to another one than that are not used again."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.current = address.hosts[0]
        self.token = b""
        self._blocks: dict[tuple[bytes, bytes], bytes] = {}
        """By method and token: one that is made while another thread logs in is not to outlive the token."""

    @cached_property
    def context(self) -> ssl.SSLContext | None:
        """Made at the first connection: it reads files."""
        try:
            return self.address.context()
        except OSError as error:
            raise StoreNotReady(f"cannot load the certificate or key that the etcd URL names: {error}") from error

    def blame(self, host: tuple[str, int]) -> None:
        """This member failed: try the next one from now on."""
        if host == self.current:
            hosts = self.address.hosts
            self.current = hosts[(hosts.index(host) + 1) % len(hosts)]

    def patience(self, limit: float) -> float:
        return limit if len(self.address.hosts) == 1 else min(limit, ONE_OF_SEVERAL)

    @property
    def needs_login(self) -> bool:
        return bool(self.address.user) and not self.token

    def login(self) -> wire.Call:
        return wire.authenticate(self.address.user, self.address.password)

    def logged_in(self, messages: list[bytes]) -> None:
        self.token = wire.first(wire.read(messages[0]), 2, b"")
        self._blocks.clear()

    def logged_out(self, token: bytes) -> None:
        if token == self.token:  # another may have been faster
            self.token = b""

    def block(self, method: bytes) -> bytes:
        token = b"" if method == wire.AUTHENTICATE else self.token
        found = self._blocks.get((method, token))
        if found is None:
            scheme = b"https" if self.address.tls else b"http"
            authority = self.address.server_name or "{}:{}".format(*self.current)
            found = self._blocks[method, token] = header_block(method, authority, scheme, token)
        return found


def is_members_fault(error: BaseException) -> bool:
    """Whether another member may do better."""
    return not isinstance(error, Refused) or error.code == _UNAVAILABLE
