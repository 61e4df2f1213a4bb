"""``leasehold doctor`` for ZooKeeper: who this client is, who the servers accept, and who may change leases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import int_struct, read_string
from kazoo.security import Permissions

from ..common.findings import ERROR, OK, WARNING, Finding
from .compat import ask
from .sessions import quiet
from .url import ZooKeeperAddress

LIMIT = 5.0
SUBJECT = "authentication"
_CHANGES = Permissions.WRITE | Permissions.CREATE | Permissions.DELETE | Permissions.ADMIN
_LOG_IN = "give a user and password: zookeeper://user:password@host (or a kazoo client with the credentials)"
_CLOSE = "give a user and password in the URL of every client, and run `setAcl -R {} auth:user:password:cdrwa` once"


class Seen(NamedTuple):
    """What one client sees, in a session of its own."""

    let_in: bool
    known_as: list[str]
    """``scheme:user``, without the scheme ``ip``, which every client has."""
    open_node: str
    """The node of the leases, if every client may change it; empty otherwise."""


class _WhoAmI:
    """A request that kazoo lacks. Servers support it since 3.7."""

    type = 107

    def serialize(self) -> bytes:
        return b""

    @classmethod
    def deserialize(cls, answer: bytes, at: int) -> list[tuple[str, str]]:
        count = int_struct.unpack_from(answer, at)[0]
        at += int_struct.size
        found = []
        for _ in range(count):
            scheme, at = read_string(answer, at)
            user, at = read_string(answer, at)
            found.append((scheme, user))
        return found


def authentication(address: ZooKeeperAddress, space: str) -> Iterator[Finding]:
    """One finding about authentication; none if no server answers, which the test lease reports."""
    ours = _look(address, address.options, space)
    if ours is None:
        return
    if not ours.let_in:
        message = "on: the servers require authentication, and this client gives no credentials, or wrong ones"
        yield Finding(ERROR, SUBJECT, message, _LOG_IN)
        return
    who = f"this client is {' and '.join(ours.known_as)}" if ours.known_as else "this client has no user"
    without = {name: value for name, value in address.options.items() if name not in ("auth_data", "default_acl")}
    anybody = _look(address, without, space) if "auth_data" in address.options else ours
    asked = anybody is not None and not anybody.let_in
    if asked:
        yield Finding(OK, SUBJECT, f"on: the servers require authentication; {who}")
    elif ours.open_node:
        message = (
            f"off: every client that reaches the servers can acquire, break and delete any lease in {ours.open_node}; "
            f"{who}"
        )
        yield Finding(WARNING, SUBJECT, message, _CLOSE.format(ours.open_node))
    else:
        yield Finding(OK, SUBJECT, f"on: the servers accept every client, and the nodes' ACL only some; {who}")


def _look(address: ZooKeeperAddress, options: dict[str, Any], space: str) -> Seen | None:
    client = KazooClient(hosts=address.hosts, logger=quiet, **options)
    try:
        client.start(LIMIT)
        open_node = _open_node(client, space)
        return Seen(True, _known_as(client), open_node)
    except (KazooException, KazooTimeoutError) as error:
        refused = type(error).__name__ in ("SessionClosedRequireSaslError", "AuthFailedError")
        return Seen(False, [], "") if refused else None
    finally:
        client.stop()
        client.close()


def _open_node(client: KazooClient, space: str) -> str:
    """The node of the namespace, or its future parent, if every client may change it; empty otherwise."""
    for node in (space, space.rpartition("/")[0]):
        try:
            acls, _ = client.get_acls_async(node).get(timeout=LIMIT)
        except NoNodeError:
            continue
        except NoAuthError:
            return ""
        return node if any(acl.id.scheme == "world" and acl.perms & _CHANGES for acl in acls) else ""
    return ""


def _known_as(client: KazooClient) -> list[str]:
    answer = client.handler.async_result()
    ask(client, _WhoAmI(), answer)
    try:
        found = answer.get(timeout=LIMIT)
    except KazooException as error:
        if type(error).__name__ != "UnimplementedError":
            raise
        found = [(scheme, given.partition(":")[0]) for scheme, given in client.auth_data]
    return [f"{scheme}:{user}" for scheme, user in found if scheme != "ip"]
