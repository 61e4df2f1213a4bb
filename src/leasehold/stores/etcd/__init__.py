"""``etcd://``: one server or a cluster, over its gRPC API.

``reading.py``, ``asking.py``, ``several.py``, ``renewing.py`` and ``store.py`` say what is stored and asked,
``sessions.py`` which leases keep it alive, ``holders.py`` what we hold by them, ``threads.py`` and ``tasks.py`` are the
drivers. ``wire.py`` and ``http2.py`` are the protocol, without I/O; ``pool_*.py`` our own connections.
"""

from __future__ import annotations

from typing import Any

from ...core.protocol import Opened
from .endpoints import Endpoints
from .store import EtcdStore
from .tasks import EtcdTasks
from .threads import EtcdThreads
from .transport_tasks import TaskTransport
from .transport_threads import ThreadTransport
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
