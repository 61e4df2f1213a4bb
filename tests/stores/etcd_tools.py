"""What the tests of etcd share: a look at its keys, acquires in threads, and a process whose calls are sent by hand."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import leasehold
from leasehold.core.protocol import SECOND, Ask, Busy, Grant, Renewal, run_steps
from leasehold.stores.etcd import wire
from leasehold.stores.etcd.endpoints import Endpoints
from leasehold.stores.etcd.store import EtcdStore
from leasehold.stores.etcd.threads import EtcdThreads, ThreadTransport
from leasehold.stores.etcd.url import parse
from leasehold.testing.handles import eventually
from leasehold.threads.locks import Locks
from leasehold.threads.runner import ThreadRegistry
from servers.etcd import Etcd, ask, b64

A, B, C = "a" * 32, "b" * 32, "c" * 32
LIMIT = 30.0
"""How long what is carried out by hand may take: nothing here is about a server that is slow."""
LONG = 100_000
"""A ttl. Nobody who joins has such a lease renewed before unless that was 1000 s ago, and no keeper comes into it."""


def keys(server: Etcd, namespace: str, kind: str) -> list[str]:
    start = f"leasehold/{namespace}/{kind}/"
    found = ask(server.port, "kv/range", {"key": b64(start), "range_end": b64(start[:-1] + "0")})
    return [base64.b64decode(each["key"]).decode() for each in found.get("kvs", [])]


def delete(server: Etcd, key: str) -> None:
    ask(server.port, "kv/deleterange", {"key": b64(key)})


def leases_of(server: Etcd) -> set[str]:
    """The leases that it has; those that other tests have left may end at any time."""
    return {each["ID"] for each in ask(server.port, "lease/leases", {}).get("leases", [])}


def lease_number(server: Etcd, namespace: str, name: str = "x") -> str:
    """The lease of the only holder of a name."""
    [key] = [key for key in keys(server, namespace, "h") if f"/{name}\0" in key]
    [found] = ask(server.port, "kv/range", {"key": b64(key)})["kvs"]
    return str(found["lease"])


def lease_length(server: Etcd, namespace: str, name: str = "x") -> int:
    """How long the lease of the only holder of a name is."""
    return int(ask(server.port, "lease/timetolive", {"ID": lease_number(server, namespace, name)})["grantedTTL"])


def deletion(watch: int, keys: dict[bytes, int]) -> bytes:
    """What etcd says on a stream of watches when keys are deleted, each at its revision."""
    events = (wire.number(1, 1) + wire.text(2, wire.text(1, key) + wire.number(3, at)) for key, at in keys.items())
    return wire.number(2, watch) + b"".join(wire.text(11, event) for event in events)


def created(watch: int, revision: int) -> bytes:
    """What etcd says when it has accepted a watch, which tells of what comes after that revision."""
    return wire.text(1, wire.number(3, revision)) + wire.number(2, watch) + wire.number(3, 1)


def request(name: str, attempt: str, ttl: float = 30.0, **options: Any) -> Ask:
    options = {"kept": True, **options}
    return Ask(name, attempt, "me", "lock", None, int(ttl * SECOND), **options)


class Waiter:
    """An acquire in a thread of its own."""

    def __init__(self, locks: leasehold.Locks, name: str, **options: Any) -> None:
        self.leases: list[leasehold.Lease] = []
        self.thread = threading.Thread(target=lambda: self.leases.append(locks.lock(name, **options).acquire(100)))
        self.thread.start()

    def lease(self, within: float = 60.0) -> leasehold.Lease:
        self.thread.join(within)
        assert self.leases, "it was not served"
        return self.leases[0]


class Recorder:
    """A transport that notes the calls of each thread, and calls ``after`` with each that was answered."""

    def __init__(self, transport: ThreadTransport) -> None:
        self.transport = transport
        self.calls: list[tuple[int, wire.EtcdCall]] = []
        self.streams: list[Any] = []
        """The watch streams that were opened."""
        self.after: Callable[[wire.EtcdCall], object] = lambda call: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def send(self, call: wire.EtcdCall, limit: float) -> list[bytes]:
        self.calls.append((threading.get_ident(), call))
        answer = self.transport.send(call, limit)
        self.after(call)
        return answer

    def watch(self, limit: float) -> Any:
        self.streams.append(self.transport.watch(limit))
        return self.streams[-1]


class Process:
    """One process, as far as etcd can tell: a store, a driver for threads, and a ``Locks`` on them.

    Its steps can be run whole, or call by call: what is sent, what is answered, and what happens in between."""

    def __init__(self, url: str, namespace: str, **options: Any) -> None:
        address = parse(url)
        self.store = EtcdStore(namespace)
        self.endpoints = Endpoints(address)
        self.transport = Recorder(ThreadTransport(self.endpoints))
        self.driver = EtcdThreads(self.store, self.transport, address.where)  # type: ignore[arg-type]
        registry = ThreadRegistry(
            self.store, self.driver, namespace=namespace, owner=None, kinds=None, defaults=options
        )
        self.locks = Locks(registry)

    def send(self, call: wire.EtcdCall) -> list[bytes]:
        return self.transport.transport.send(call, LIMIT)

    def run(self, steps: Any) -> Any:
        return run_steps(steps, self.send)

    def up_to(self, steps: Any, method: bytes, said: bytes = b"") -> wire.EtcdCall:
        """Carry an operation out up to its first call of this method that says so: that one is not sent."""
        call: wire.EtcdCall = next(steps)
        while call.method != method or said not in b"".join(call.messages):
            call = steps.send(self.send(call))
        return call

    def finish(self, steps: Any, call: wire.EtcdCall) -> Any:
        """Run an operation that has come as far as this call to its end."""
        while True:
            try:
                answer = self.send(call)
            except Exception as error:
                following = lambda error=error: steps.throw(error)  # noqa: E731
            else:
                following = lambda answer=answer: steps.send(answer)  # noqa: E731
            try:
                call = following()
            except StopIteration as over:
                return over.value

    def granted(self, name: str, attempt: str, ttl: float = 30.0, **options: Any) -> Grant:
        reply = self.run(self.store.acquire(request(name, attempt, ttl, **options)))
        assert isinstance(reply, Grant), reply
        return reply

    def queued(self, name: str, attempt: str, ttl: float = 30.0) -> Busy:
        reply = self.run(self.store.acquire(request(name, attempt, ttl, queue=True)))
        assert isinstance(reply, Busy), reply
        return reply

    def renew(self, *asks: Renewal) -> Any:
        return self.run(self.store.renew(asks))

    def release(self, name: str, attempt: str, grant: Grant) -> bool:
        return bool(self.run(self.store.release(name, attempt, grant.token, grant.hint)))

    def listens(self) -> bool:
        return self.driver.listen("", None)

    def until_listening(self) -> None:
        eventually(self.listens, 30, "it listens")

    @contextmanager
    def noted(self) -> Iterator[list[bytes]]:
        """The methods of the calls that this thread makes meanwhile."""
        before, found = len(self.transport.calls), list[bytes]()
        me = threading.get_ident()
        yield found
        found += [call.method for thread, call in self.transport.calls[before:] if thread == me]


def renewal(name: str, attempt: str, grant: Grant, ttl: float) -> Renewal:
    return Renewal(name, attempt, grant.token, int(ttl * SECOND))


def over(steps: Any, error: BaseException) -> Any:
    """What an operation returns when its call fails so."""
    try:
        steps.throw(error)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it makes another call")
