"""A small model of etcd: transactions, leases with ttl and keep-alive, watches, one revision. No I/O, any clock.

``EtcdModel.call`` answers what leasehold asks of etcd's gRPC API; ``Stream`` is one watch stream. It passes the
conformance suite as the real server does: see ``tests/conformance/test_etcd_model.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from leasehold.stores.etcd.wire import first, number, read, text

NOT_FOUND, FAILED_PRECONDITION, INVALID = 5, 9, 3
MOST_OPERATIONS = 128


class Refusal(Exception):
    """The server's answer is an error: gRPC's status code and a message."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code
        self.said = f"etcdserver: {said}"


class Stored(NamedTuple):
    key: bytes
    create: int
    mod: int
    version: int
    value: bytes
    lease: int

    def dump(self, keys_only: bool = False) -> bytes:
        fields = text(1, self.key) + number(2, self.create) + number(3, self.mod) + number(4, self.version)
        return fields + (b"" if keys_only else text(5, self.value)) + number(6, self.lease)


ABSENT = Stored(b"", 0, 0, 0, b"", 0)


class ModelLease:
    def __init__(self, ttl: int, now: float) -> None:
        self.ttl = ttl
        self.expires = now + ttl
        self.keys: set[bytes] = set()


class Event(NamedTuple):
    deleted: bool
    stored: Stored

    def dump(self) -> bytes:
        return (number(1, 1) if self.deleted else b"") + text(2, self.stored.dump())


class Stream:
    """One watch stream. ``tell`` is called with each message for the client."""

    def __init__(self, model: EtcdModel, tell: Callable[[bytes], object]) -> None:
        self._model = model
        self._tell = tell
        self._watches: dict[int, tuple[bytes, bytes, bool, bool]] = {}
        model.streams.append(self)

    def ask(self, message: bytes) -> None:
        request = read(message)
        if 1 in request:
            fields = read(request[1][0])
            watch, key, end, since = first(fields, 7), first(fields, 1), first(fields, 2, b""), first(fields, 3)
            filters = fields.get(5, [])
            self._watches[watch] = (key, end, 0 not in filters, 1 not in filters)
            self._say(watch, number(3, 1))
            if since:
                for revision, events in self._model.history:
                    if revision >= since:
                        self._about(watch, events)
        elif 2 in request:
            watch = first(read(request[2][0]), 1)
            if self._watches.pop(watch, None) is not None:
                self._say(watch, number(4, 1))

    def happened(self, events: list[Event]) -> None:
        for watch in list(self._watches):
            self._about(watch, events)

    def close(self) -> None:
        if self in self._model.streams:
            self._model.streams.remove(self)

    def _about(self, watch: int, events: list[Event]) -> None:
        key, end, puts, deletes = self._watches[watch]
        wanted = [each for each in events if _within(each.stored.key, key, end) and (deletes if each.deleted else puts)]
        if wanted:
            self._say(watch, b"".join(text(11, each.dump()) for each in wanted))

    def _say(self, watch: int, rest: bytes) -> None:
        self._tell(self._model.header() + number(2, watch) + rest)


class EtcdModel:
    """``now``: the server's clock, in seconds. ``shortest``: what a shorter lease is stretched to."""

    def __init__(self, now: Callable[[], float], shortest: int = 1) -> None:
        self.now = now
        self.shortest = shortest
        self.streams: list[Stream] = []
        self.forget()

    def forget(self) -> None:
        """Begin anew, with nothing stored. Streams are closed."""
        self.revision = 1
        self.keys: dict[bytes, Stored] = {}
        self.leases: dict[int, ModelLease] = {}
        self.history: list[tuple[int, list[Event]]] = []
        self.streams.clear()
        self._new: list[Event] = []

    def restore(self, kept: Iterable[Stored]) -> None:
        for each in kept:
            self.keys[each.key] = each._replace(create=1, mod=1, version=1, lease=0)

    def restart(self) -> None:
        """A new leader: streams are closed, and every lease has its whole term again."""
        self.streams.clear()
        for lease in self.leases.values():
            lease.expires = max(lease.expires, self.now() + lease.ttl)

    def expire(self) -> None:
        """End the leases that have run out. The real server does that every 500 ms."""
        for number_of_it in [each for each, lease in self.leases.items() if lease.expires <= self.now()]:
            self._end(number_of_it)

    def header(self) -> bytes:
        return text(1, number(3, self.revision))

    def call(self, method: bytes, messages: Iterable[bytes]) -> list[bytes]:
        """The answer to one call. Raises Refusal."""
        name = method.decode().rpartition("/")[2]
        if name == "LeaseKeepAlive":
            return [self._keep_alive(read(message)) for message in messages]
        [message] = messages
        handlers = {
            "Range": self._range,
            "Txn": self._txn,
            "LeaseGrant": self._grant,
            "LeaseRevoke": self._revoke,
            "LeaseTimeToLive": self._time_to_live,
        }
        if name not in handlers:
            raise Refusal(12, f"unknown method {name}")
        return [handlers[name](read(message))]

    # Keys.

    def under(self, key: bytes, end: bytes = b"") -> list[Stored]:
        return sorted(each for name, each in self.keys.items() if _within(name, key, end))

    def _range(self, fields: Any) -> bytes:
        found = self.under(first(fields, 1, b""), first(fields, 2, b""))
        total, limit = len(found), first(fields, 3)
        if first(fields, 5) == 2:
            found.reverse()
        more = bool(limit) and total > limit
        found = found[:limit] if limit else found
        kvs = b"" if first(fields, 9) else b"".join(text(2, each.dump(bool(first(fields, 8)))) for each in found)
        return self.header() + kvs + number(3, int(more)) + number(4, total)

    def _txn(self, fields: Any) -> bytes:
        if max(len(fields.get(each, [])) for each in (1, 2, 3)) > MOST_OPERATIONS:
            raise Refusal(INVALID, "too many operations in txn request")
        succeeded = all(self._holds(read(each)) for each in fields.get(1, []))
        operations = [read(each) for each in fields.get(2 if succeeded else 3, [])]
        for operation in operations:
            if 2 in operation:
                lease = first(read(operation[2][0]), 3)
                if lease and lease not in self.leases:
                    raise Refusal(NOT_FOUND, "requested lease not found")
        written = [first(read(each), 1) for operation in operations for each in operation.get(2, [])]
        if len(set(written)) < len(written):
            raise Refusal(INVALID, "duplicate key given in txn request")
        answers = b""
        for operation in operations:
            if 1 in operation:
                answers += text(3, text(1, self._range(read(operation[1][0]))))
            elif 2 in operation:
                self._put(read(operation[2][0]))
                answers += text(3, text(2, b""))
            elif 3 in operation:
                deletion = read(operation[3][0])
                self._delete(first(deletion, 1, b""), first(deletion, 2, b""))
                answers += text(3, text(3, b""))
        self._commit()
        return self.header() + number(2, int(succeeded)) + answers

    def _holds(self, fields: Any) -> bool:
        result, target = first(fields, 1), first(fields, 2)
        found = self.under(first(fields, 3, b""), first(fields, 64, b""))
        if not found:
            if target == 3:
                return False
            found = [ABSENT]
        field = {0: "version", 1: "create", 2: "mod", 3: "value", 4: "lease"}[target]
        wanted = first(fields, 4 + target, b"" if target == 3 else 0)
        return all(_compares(getattr(each, field), result, wanted) for each in found)

    def _put(self, fields: Any) -> None:
        key, value, lease = first(fields, 1, b""), first(fields, 2, b""), first(fields, 3)
        old, revision = self.keys.get(key, ABSENT), self.revision + 1
        if old.lease in self.leases:
            self.leases[old.lease].keys.discard(key)
        new = Stored(key, old.create or revision, revision, old.version + 1, value, lease)
        if lease:
            self.leases[lease].keys.add(key)
        self.keys[key] = new
        self._new.append(Event(False, new))

    def _delete(self, key: bytes, end: bytes = b"") -> None:
        for each in self.under(key, end):
            del self.keys[each.key]
            if each.lease in self.leases:
                self.leases[each.lease].keys.discard(each.key)
            self._new.append(Event(True, ABSENT._replace(key=each.key, mod=self.revision + 1)))

    def _commit(self) -> None:
        if self._new:
            self.revision += 1
            events, self._new = self._new, []
            self.history.append((self.revision, events))
            for stream in list(self.streams):
                stream.happened(events)

    # Leases.

    def _grant(self, fields: Any) -> bytes:
        ttl, number_of_it = first(fields, 1), first(fields, 2)
        if number_of_it in self.leases:
            raise Refusal(FAILED_PRECONDITION, "lease already exists")
        ttl = max(ttl, self.shortest)
        self.leases[number_of_it] = ModelLease(ttl, self.now())
        return self.header() + number(2, number_of_it) + number(3, ttl)

    def _revoke(self, fields: Any) -> bytes:
        if first(fields, 1) not in self.leases:
            raise Refusal(NOT_FOUND, "requested lease not found")
        self._end(first(fields, 1))
        return self.header()

    def _end(self, number_of_it: int) -> None:
        for key in sorted(self.leases[number_of_it].keys):
            self._delete(key)
        del self.leases[number_of_it]
        self._commit()

    def _keep_alive(self, fields: Any) -> bytes:
        number_of_it = first(fields, 1)
        lease = self.leases.get(number_of_it)
        if lease is None or lease.expires <= self.now():  # it has run out: the real server waits until it is revoked
            return self.header() + number(2, number_of_it)
        lease.expires = self.now() + lease.ttl
        return self.header() + number(2, number_of_it) + number(3, lease.ttl)

    def _time_to_live(self, fields: Any) -> bytes:
        number_of_it = first(fields, 1)
        lease = self.leases.get(number_of_it)
        if lease is None:
            return self.header() + number(2, number_of_it) + number(3, -1 + 2**64)
        left = max(0, math.floor(lease.expires - self.now()))
        return self.header() + number(2, number_of_it) + number(3, left) + number(4, lease.ttl)


def _within(name: bytes, key: bytes, end: bytes) -> bool:
    return key <= name and (name < end if end else name == key)


def _compares(have: Any, result: int, wanted: Any) -> bool:
    if result == 0:
        return bool(have == wanted)
    if result == 1:
        return bool(have > wanted)
    return bool(have < wanted) if result == 2 else bool(have != wanted)
