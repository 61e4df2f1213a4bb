"""What kazoo raises, and what leasehold makes of it."""

from __future__ import annotations

import ssl

from kazoo.exceptions import ConnectionLoss, KazooException, ZookeeperError

from ...errors import StoreNotReady, StoreUnavailable


def concerns_node(error: BaseException) -> bool:
    """Whether the server has done as asked and found the node otherwise than expected: an answer, not a failure."""
    return type(error).__name__ in (
        *("NoNodeError", "NodeExistsError", "BadVersionError", "NotEmptyError", "RolledBackError"),
        "RuntimeInconsistency",
    )


def is_about_tls(error: OSError) -> bool:
    """Whether it is a certificate or a file that is wrong, rather than the way there."""
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)):
        return False
    return isinstance(error, (ssl.SSLError, FileNotFoundError, PermissionError))


def translate(error: BaseException, where: str) -> Exception:
    """What kazoo raises as what leasehold does: unknown and worth a retry, or not ready and how to mend it."""
    name = type(error).__name__
    match name:
        case "NoAuthError":
            return StoreNotReady(
                f"{where}: the nodes' ACL does not allow this: give the user and password that created them, or see "
                "docs/stores/zookeeper.md for what leasehold needs"
            )
        case "SessionClosedRequireSaslError":
            return StoreNotReady(
                f"{where}: the servers require authentication: give a user and password, "
                "zookeeper://user:password@host, or a kazoo client with the credentials"
            )
        case "AuthFailedError" | "InvalidACLError":
            return StoreNotReady(f"{where}: authentication failed ({name}): check the credentials")
        case "UnimplementedError":
            return StoreNotReady(f"{where}: the server does not know a request: use ZooKeeper 3.5 or later")
        case "QuotaExceededError":
            return StoreNotReady(f"{where}: a quota of the server is used up: raise the quota")
    if isinstance(error, (ConnectionLoss, ZookeeperError, KazooException, OSError)) or name == "KazooTimeoutError":
        return StoreUnavailable(f"{where}: {name}" + (f": {error}" if str(error) else ""))
    raise error
