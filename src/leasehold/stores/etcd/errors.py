"""From what etcd answers to what leasehold raises: unknown and worth a retry, or not ready and how to mend it."""

from __future__ import annotations

import ssl

from ...errors import StoreError, StoreNotReady, StoreUnavailable

_UNKNOWN = (1, 2, 4, 13, 14)
"""gRPC's cancelled, unknown, deadline exceeded, internal, unavailable."""
_PERMISSION, _UNIMPLEMENTED = 7, 12


class GrpcError(Exception):
    """The server's answer to a call is an error: gRPC's status code and what it says."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code
        self.said = said

    @property
    def unknown(self) -> bool:
        """Whether the call may have been carried out all the same, or yet be: the leader has changed, time ran out."""
        return self.code in _UNKNOWN

    @property
    def full(self) -> bool:
        """NOSPACE. A write that has just filled it is carried out and told so all the same."""
        return "database space exceeded" in self.said

    @property
    def forbidden(self) -> bool:
        """The user's role does not allow it."""
        return self.code == _PERMISSION

    @property
    def unimplemented(self) -> bool:
        """The server is too old to know this call."""
        return self.code == _UNIMPLEMENTED

    @property
    def has_no_users(self) -> bool:
        """Its authentication is off."""
        return "authentication is not enabled" in self.said

    @property
    def is_about_users(self) -> bool:
        """It is asked of somebody it does not know or trust, or whom it does not let log in."""
        signs = ("authentication", "user name is empty", "permission denied", "auth token", "auth store")
        return any(sign in self.said for sign in signs)

    @property
    def lease_is_gone(self) -> bool:
        return "requested lease not found" in self.said

    @property
    def lease_is_there(self) -> bool:
        return "lease already exists" in self.said

    @property
    def token_is_old(self) -> bool:
        """The user has to be authenticated again; the call was not carried out."""
        signs = ("invalid auth token", "revision of auth store is old", "user name is empty")
        return any(sign in self.said for sign in signs)  # the last: another thread has just logged out


DRIVER_ERRORS = (GrpcError, OSError)

# What the answer says, somewhere in its text.
_MEND = (
    (
        "database space exceeded",
        "etcd is full (NOSPACE), no lease can be acquired: compact, defragment, then run `etcdctl alarm disarm`",
    ),
    ("authentication failed", "authentication failed: check the user name and password"),
    ("user name is empty", "etcd requires a user and password: etcd://user:password@host"),
    ("authentication is not enabled", "authentication is off in etcd: remove user and password from the URL"),
    ("permission denied", "the user's role lacks a permission: see docs/stores/etcd.md#permissions"),
    ("corrupt", "etcd reports corrupt data and refuses calls: run `etcdctl alarm list`"),
)


def translate(error: BaseException, where: str) -> StoreError:
    if isinstance(error, GrpcError):
        for sign, how in _MEND:
            if sign in error.said:
                return StoreNotReady(f"{where}: {how}")
        if error.code in (_PERMISSION, _UNIMPLEMENTED):
            return StoreNotReady(f"{where}: the server refused the call: {error.said}")
        return StoreUnavailable(f"{where}: {error.said}")
    if isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return StoreNotReady(
            f"{where}: TLS connection failed ({error.reason or error}): check that the port speaks TLS and that the "
            "certificate is trusted"
        )
    said = str(error).partition("\n")[0][:300]
    return StoreUnavailable(f"{where}: {said or type(error).__name__}")
