"""Leases in Redis, Valkey, a primary found through Sentinels, or a cluster.

Stored: a hash per name, and a sorted set while somebody waits for it (``scripts/record.lua``). Each operation is one
script, sent in one round trip. Clock: only the server's ``TIME`` decides what has expired.

A release grants the lease to the first waiter for a first term and publishes the waiter's attempt on its session's
channel; the waiter claims the lease with a call. What is published is never believed: it only makes a waiter ask.

Read next: ``store.py`` (what is asked, how replies are read), ``requests.py`` (which round trips that takes),
``transport_threads.py`` (connections), ``threads.py`` (the driver); the twins for asyncio end in ``tasks``.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import redis
import redis.asyncio
from redis import connection

from ...core.protocol import Opened
from . import clients, sentinel, transport_tasks
from .client_tasks import ClientTaskTransport
from .client_threads import ClientTransport
from .cluster import Cluster
from .requests import NodeAddress, OneServer
from .store import RedisStore
from .tasks import RedisTasks
from .threads import RedisThreads
from .transport_tasks import TaskTransport
from .transport_threads import ThreadTransport
from .url import OURS, RedisAddress, parse


def open_url(url: str, namespace: str) -> Opened:
    address = parse(url)
    check_options(address)
    store = RedisStore("redis", namespace, clustered=address.kind == "cluster")

    def threads() -> RedisThreads:
        return RedisThreads(store, thread_transport(address), address.where)

    def tasks() -> RedisTasks:
        return RedisTasks(store, task_transport(address), address.where, threads)

    return Opened(store, threads, tasks)


def open_client(client: Any, namespace: str) -> Opened:
    """A client that the user has made: ``redis.Redis``, ``redis.RedisCluster``, or one of ``redis.asyncio``."""
    clustered = isinstance(client, (redis.RedisCluster, redis.asyncio.RedisCluster))
    transport: ThreadTransport | None = None
    if isinstance(client, (redis.Redis, redis.RedisCluster)):
        transport = clients.cluster_in_threads(client) if clustered else ClientTransport(client)
    elif not isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
        raise TypeError(
            f"connect() takes a redis.Redis, a redis.RedisCluster or one of redis.asyncio, not {type(client).__name__}"
        )
    store = RedisStore("redis", namespace, clustered=clustered)

    def threads() -> RedisThreads:
        if transport is None:
            raise TypeError(
                "a redis.asyncio client is for leasehold.aio.connect; for threads give a redis.Redis or a URL"
            )
        return RedisThreads(store, transport, "redis")

    def at_exit() -> RedisThreads:
        return RedisThreads(store, thread_transport(clients.address_of(client)), "redis")

    def tasks() -> RedisTasks:
        if transport is not None:
            raise TypeError(
                "a redis.Redis is for leasehold.connect; for leasehold.aio give a redis.asyncio client or a URL"
            )
        borrowed = clients.cluster_in_tasks(client) if clustered else ClientTaskTransport(client)
        return RedisTasks(store, borrowed, "redis", at_exit)

    return Opened(store, threads, tasks)


def thread_transport(address: RedisAddress) -> ThreadTransport:
    """Connections of our own, for threads."""
    options = _options(address)
    kind = _connection_class(connection, address)
    sentinels = sentinel.Sentinels(address, options)

    def make(node: NodeAddress | None, limit: float) -> Any:
        if address.kind == "sentinel":
            return sentinel.make_in_thread(kind, sentinels, limit)
        return kind(**_place(address, node), socket_timeout=limit, socket_connect_timeout=limit, **options)

    return ThreadTransport(_topology(address), make)


def task_transport(address: RedisAddress) -> TaskTransport:
    """Connections of our own, for asyncio."""
    from redis.asyncio import connection

    options = {**_options(address), "socket_timeout": None}  # each call has a limit of its own
    kind = _connection_class(connection, address)
    sentinels = sentinel.Sentinels(address, options)

    async def make(node: NodeAddress | None, limit: float) -> Any:
        if address.kind == "sentinel":
            return await sentinel.make_in_task(kind, sentinels, limit)
        patience = limit * 0.7 if address.tls else limit  # time to find out why TLS does not work
        return await transport_tasks.connect(kind(**_place(address, node), socket_connect_timeout=patience, **options))

    return TaskTransport(_topology(address), make)


def _topology(address: RedisAddress) -> OneServer | Cluster:
    return Cluster(address.hosts, address.replicas) if address.kind == "cluster" else OneServer(address.replicas)


def _connection_class(module: Any, address: RedisAddress) -> Any:
    if address.kind == "unix":
        return module.UnixDomainSocketConnection
    return module.SSLConnection if address.tls else module.Connection


def _place(address: RedisAddress, node: NodeAddress | None) -> dict[str, Any]:
    if address.kind == "unix":
        return {"path": address.path}
    host, port = node or address.hosts[0]
    return {"host": host, "port": port}


_KNOWN = f"; known are {', '.join(OURS)}, and the options of redis-py's connections"


def check_options(address: RedisAddress) -> None:
    """See that redis-py takes what the URL adds: connections are made, and not connected. Raises ValueError."""
    from redis.asyncio import connection as connection_tasks

    for module in connection, connection_tasks:
        kind = _connection_class(module, address)
        for options in _options(address), address.sentinel_options:
            try:
                kind(**options)
            except TypeError as error:
                name = next((name for name in options if f"'{name}'" in str(error)), "")
                only = "; it is for rediss://" if name.startswith("ssl_") else ""
                raise ValueError(f"unknown option {name!r} in the Redis URL{only or _KNOWN}") from None
            except redis.RedisError as error:
                raise ValueError(f"bad option in the Redis URL: {error}") from None


def _options(address: RedisAddress) -> dict[str, Any]:
    """For redis-py's connections. It is not to send its name and version: two round trips, and a permission more."""
    told = "driver_info" in signature(connection.AbstractConnection).parameters
    silent = {"driver_info": None} if told else {"lib_name": None, "lib_version": None}
    checked = {"ssl_check_hostname": True} if address.tls else {}  # redis-py does so by default since 6.0 only
    return {**checked, **address.options, "protocol": 2, **silent}
