"""``etcd://``: one server or a cluster, over its gRPC API.

*Stored*: a key for each holder and each waiter of a name, attached to a lease of etcd's. That the key is there is the
lease: it goes when etcd's lease ends. Its create revision, above an epoch, is the token. A free name leaves nothing.
The whole shape is in ``session.py``.

*Clock*: etcd ends leases by its leader's clock. It has none to read, so every grant is a transaction on the condition
that nothing has changed since the look before it. A holder trusts its lease for less time than etcd keeps it: its term
counts from the sending of what last renewed etcd's lease.

*Wake-ups*: one watch stream a process. The first waiter of a queue hears that a holder's key was deleted, every other
one that the waiter ahead is gone, and the second and third take over if those ahead of them do nothing.

Read on: ``leases.py`` (what keeps keys alive), ``acquiring.py``, ``queue.py``, ``renewing.py``, ``store.py`` (the rest,
and the operations in one list), ``subscriptions.py`` (who watches what). ``threads.py`` and ``tasks.py`` are the
drivers, around one ``transport.py`` and one ``driver.py``. They do all I/O, beside ``channels.py``, which is for a
channel of grpcio that the user has made. Why it is so: docs/design/08-etcd.md.
"""

from __future__ import annotations

from typing import Any

from ...core.protocol import Opened
from .endpoints import Endpoints
from .store import EtcdStore
from .tasks import EtcdTasks, TaskTransport
from .threads import EtcdThreads, ThreadTransport
from .url import parse


def open_url(url: str, namespace: str) -> Opened:
    address = parse(url)
    store = EtcdStore(namespace)

    def threads() -> EtcdThreads:
        return EtcdThreads(store, ThreadTransport(Endpoints(address)), address.where)

    def tasks() -> EtcdTasks:
        return EtcdTasks(store, TaskTransport(Endpoints(address)), address.where, threads)

    return Opened(store, threads, tasks)


def open_client(client: Any, namespace: str) -> Opened:
    """A channel that the user has made, or a client that has one: of ``grpc.aio`` for asyncio, else for threads."""
    from .channels import ClosedLoop, TaskChannel, ThreadChannel, is_asynchronous

    asynchronous, what = is_asynchronous(client), type(client).__name__
    store = EtcdStore(namespace)

    def threads() -> EtcdThreads:
        if asynchronous:
            raise TypeError(
                f"{what} is for asyncio: give it to leasehold.aio.connect; for threads give a grpc.Channel, a client "
                "that has one, or a URL"
            )
        return EtcdThreads(store, ThreadChannel(client), "etcd")

    def tasks() -> EtcdTasks:
        if not asynchronous:
            raise TypeError(
                f"{what} is for threads: give it to leasehold.connect; for leasehold.aio give a grpc.aio.Channel, a "
                "client that has one (aetcd.Client), or a URL"
            )
        return EtcdTasks(store, TaskChannel(client), "etcd", lambda: EtcdThreads(store, ClosedLoop(), "etcd"))

    return Opened(store, threads, tasks)
