"""Protocol Buffers, as far as etcd's API needs them: fields that are numbers, bytes, or messages.

Requests are written as bytes; answers are read into a dict of field number to the list of its values. The numbers are
those of etcd's published ``rpc.proto`` and ``kv.proto``, which never change their meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from ...core.protocol import Steps, T

Fields: TypeAlias = dict[int, list[Any]]

_SIGN = 1 << 63


def _varint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def text(field: int, value: bytes) -> bytes:
    """Bytes, text, or a message."""
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def read(message: bytes) -> Fields:
    fields: Fields = {}
    at, end = 0, len(message)
    while at < end:
        tag, at = _read_varint(message, at)
        value: int | bytes
        match tag & 7:
            case 0:
                value, at = _read_varint(message, at)
                if value >= _SIGN:
                    value -= 1 << 64
            case 2:
                length, at = _read_varint(message, at)
                value, at = message[at : at + length], at + length
            case 1:
                value, at = message[at : at + 8], at + 8
            case _:
                value, at = message[at : at + 4], at + 4
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = message[at]
    at += 1
    if value < 128:
        return value, at
    value &= 127
    shift = 7
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def first(fields: Fields, field: int, default: Any = 0) -> Any:
    """A field that is there at most once; left out by the sender, it is zero."""
    values = fields.get(field)
    return values[-1] if values else default


class EtcdCall(NamedTuple):
    """One call of the API, answered with the list of messages that come back."""

    method: bytes
    messages: tuple[bytes, ...]
    urgent: bool = False
    """Whether it is part of a renewal, which has a connection of its own."""
    patient: bool = False
    """Whether it is part of a new acquire. Those take turns among themselves: none delays a release or a claim."""


def mapped(steps: Steps[T], change: Callable[[Any], Any]) -> Steps[T]:
    """The same steps, with each call changed."""
    try:
        call = next(steps)
        while True:
            try:
                answer = yield change(call)
            except Exception as error:
                call = steps.throw(error)
            else:
                call = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


def marked(steps: Steps[T], **marks: bool) -> Steps[T]:
    """The same steps, with these marks on each call."""
    return mapped(steps, lambda call: call._replace(**marks))


RANGE, TXN = b"/etcdserverpb.KV/Range", b"/etcdserverpb.KV/Txn"
GRANT, REVOKE = b"/etcdserverpb.Lease/LeaseGrant", b"/etcdserverpb.Lease/LeaseRevoke"
KEEP_ALIVE, TIME_TO_LIVE = b"/etcdserverpb.Lease/LeaseKeepAlive", b"/etcdserverpb.Lease/LeaseTimeToLive"
AUTHENTICATE, AUTH_STATUS = b"/etcdserverpb.Auth/Authenticate", b"/etcdserverpb.Auth/AuthStatus"
WATCH = b"/etcdserverpb.Watch/Watch"
MEMBERS = b"/etcdserverpb.Cluster/MemberList"
STATUS, ALARM = b"/etcdserverpb.Maintenance/Status", b"/etcdserverpb.Maintenance/Alarm"

# Compare: result and target.
EQUAL, GREATER, LESS = 0, 1, 2
CREATE, MOD, VALUE = 1, 2, 3


class KeyValue(NamedTuple):
    key: bytes
    create: int
    mod: int
    value: bytes
    lease: int


class KeyPage(NamedTuple):
    """The answer to a range: what was found, and how much there is of it in all."""

    found: list[KeyValue]
    total: int
    more: bool


class TxnResult(NamedTuple):
    """The answer to a transaction."""

    revision: int
    succeeded: bool
    pages: list[KeyPage]
    """Of the ranges among its operations."""


# Requests.


def range_of(
    key: bytes,
    end: bytes = b"",
    *,
    limit: int = 0,
    last_first: bool = False,
    keys_only: bool = False,
    count_only: bool = False,
) -> bytes:
    reading = number(3, limit) + number(5, 2 * last_first) + number(8, keys_only) + number(9, count_only)
    return text(1, key) + (text(2, end) if end else b"") + reading  # an empty end would be that of all keys


def get(*args: Any, **options: Any) -> bytes:
    """A range as an operation of a transaction."""
    return text(1, range_of(*args, **options))


def put(key: bytes, value: bytes, lease: int = 0) -> bytes:
    return text(2, text(1, key) + text(2, value) + number(3, lease))


def delete(key: bytes) -> bytes:
    return text(3, text(1, key))


def compare(result: int, target: int, key: bytes, value: int | bytes, end: bytes = b"") -> bytes:
    """Of a whole range it holds when it does for every key; one that is not there has revision 0."""
    what = text(7, value) if isinstance(value, bytes) else number(4 + target, value)
    return number(1, result) + number(2, target) + text(3, key) + what + (text(64, end) if end else b"")


def txn(compares: list[bytes], success: list[bytes], failure: list[bytes]) -> EtcdCall:
    parts = [text(field, each) for field, some in enumerate((compares, success, failure), 1) for each in some]
    return EtcdCall(TXN, (b"".join(parts),))


def lease_grant(lease: int, ttl: int) -> EtcdCall:
    return EtcdCall(GRANT, (number(1, ttl) + number(2, lease),))


def lease_revoke(lease: int) -> EtcdCall:
    return EtcdCall(REVOKE, (number(1, lease),))


def lease_keep_alive(leases: list[int]) -> EtcdCall:
    return EtcdCall(KEEP_ALIVE, tuple(number(1, lease) for lease in leases))


def lease_time_to_live(lease: int) -> EtcdCall:
    return EtcdCall(TIME_TO_LIVE, (number(1, lease),))


def authenticate(user: str, password: str) -> EtcdCall:
    return EtcdCall(AUTHENTICATE, (text(1, user.encode()) + text(2, password.encode()),))


def watch_create(number_of_it: int, key: bytes, end: bytes, *, puts: bool, deletes: bool) -> bytes:
    """A watch from now on."""
    unwanted = (b"" if puts else number(5, 0)) + (b"" if deletes else number(5, 1))
    return text(1, text(1, key) + text(2, end) + unwanted + number(7, number_of_it))


def watch_cancel(number_of_it: int) -> bytes:
    return text(2, number(1, number_of_it))


# Answers.


def read_key(message: bytes) -> KeyValue:
    fields = read(message)
    return KeyValue(first(fields, 1, b""), first(fields, 2), first(fields, 3), first(fields, 5, b""), first(fields, 6))


def read_page(message: bytes) -> KeyPage:
    fields = read(message)
    return KeyPage([read_key(each) for each in fields.get(2, ())], first(fields, 4), bool(first(fields, 3)))


def read_txn(messages: list[bytes]) -> TxnResult:
    fields = read(messages[0])
    pages = []
    for response in fields.get(3, ()):
        inner = read(response)
        if 1 in inner:
            pages.append(read_page(inner[1][0]))
    return TxnResult(first(read(first(fields, 1, b"")), 3), bool(first(fields, 2)), pages)


class WatchMessage(NamedTuple):
    """A message of a watch stream. One that is ``created`` tells of all that comes after ``revision``."""

    revision: int
    watch: int
    created: bool
    canceled: bool
    reason: str
    puts: list[bytes]
    deletes: dict[bytes, int]
    """Each with the revision of that."""


def read_watch(message: bytes) -> WatchMessage:
    fields = read(message)
    reason = first(fields, 6, b"").decode(errors="replace")
    puts: list[bytes] = []
    deletes: dict[bytes, int] = {}
    for message in fields.get(11, ()):
        event = read(message)
        key = read_key(first(event, 2, b""))
        if first(event, 1):
            deletes[key.key] = key.mod
        else:
            puts.append(key.key)
    revision = first(read(first(fields, 1, b"")), 3)
    return WatchMessage(
        revision, first(fields, 2), bool(first(fields, 3)), bool(first(fields, 4)), reason, puts, deletes
    )
