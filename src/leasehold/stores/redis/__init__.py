"""``redis://`` and its kin: one server, a primary found through Sentinels, or a cluster; also Valkey.

The stored shape is in ``record.lua``; the scripts, one per operation, are beside it. ``store.py`` says what is asked,
``threads.py`` and ``tasks.py`` are the drivers, ``pool_*.py`` our own connections.
"""

from __future__ import annotations

from collections.abc import Awaitable
from inspect import signature
from typing import Any

import redis
import redis.asyncio
from redis import connection

from ...core.protocol import Opened
from . import (
    client_cluster,
    client_tasks,
    client_threads,
    cluster,
    cluster_tasks,
    cluster_threads,
    pool_tasks,
    pool_threads,
    sentinel,
)
from .client_address import address_of
from .pool_tasks import connect
from .store import RedisStore
from .tasks import RedisTasks
from .threads import RedisThreads
from .url import Address, parse


def open_url(url: str, namespace: str) -> Opened:
    address = parse(url)
    check_options(address)
    store = RedisStore("redis", namespace, address.replicas, clustered=address.kind == "cluster")

    def threads() -> RedisThreads:
        return RedisThreads(store, thread_link(address), address.where, address.replicas)

    def tasks() -> RedisTasks:
        return RedisTasks(store, task_link(address), address.where, threads, address.replicas)

    return Opened(store, threads, tasks)


def open_client(client: Any, namespace: str) -> Opened:
    """A client that the user has made: ``redis.Redis``, ``redis.RedisCluster``, or one of ``redis.asyncio``."""
    clustered = isinstance(client, (redis.RedisCluster, redis.asyncio.RedisCluster))
    if isinstance(client, (redis.Redis, redis.RedisCluster)):
        link: Any = client_cluster.in_threads(client) if clustered else client_threads.Borrowed(client)
    elif isinstance(client, (redis.asyncio.Redis, redis.asyncio.RedisCluster)):
        link = None
    else:
        raise TypeError(
            f"connect() takes a redis.Redis, a redis.RedisCluster or one of redis.asyncio, not {type(client).__name__}"
        )
    store = RedisStore("redis", namespace, clustered=clustered)

    def threads() -> RedisThreads:
        if link is None:
            raise TypeError(
                "a redis.asyncio client is for leasehold.aio.connect; for threads give a redis.Redis or a URL"
            )
        return RedisThreads(store, link, "redis")

    def tasks() -> RedisTasks:
        if link is not None:
            raise TypeError(
                "a redis.Redis is for leasehold.connect; for leasehold.aio give a redis.asyncio client or a URL"
            )
        borrowed: Any = client_cluster.in_tasks(client) if clustered else client_tasks.Borrowed(client)
        return RedisTasks(store, borrowed, "redis", lambda: RedisThreads(store, like(client), "redis"))

    return Opened(store, threads, tasks)


def like(client: Any) -> pool_threads.Pool | cluster_threads.Cluster:
    """Connections of our own to where a client of asyncio connects: for the exit, when its loop is gone."""
    return thread_link(address_of(client))


def thread_link(address: Address) -> pool_threads.Pool | cluster_threads.Cluster:
    options = _options(address)

    def make(node: cluster.Node, limit: float) -> Any:
        return kind(host=node[0], port=node[1], socket_timeout=limit, socket_connect_timeout=limit, **options)

    kind: Any = connection.SSLConnection if address.tls else connection.Connection
    match address.kind:
        case "unix":
            kind = connection.UnixDomainSocketConnection
            return pool_threads.Pool(lambda limit: kind(socket_timeout=limit, path=address.path, **options))
        case "sentinel":
            sentinels = sentinel.Sentinels(address, options)
            return pool_threads.Pool(lambda limit: sentinel.make_in_thread(kind, sentinels, limit))
        case "cluster":
            return cluster_threads.Cluster(address.hosts, make)
    return pool_threads.Pool(lambda limit: make(address.hosts[0], limit))


def task_link(address: Address) -> pool_tasks.Pool | cluster_tasks.Cluster:
    from redis.asyncio import connection

    options = {**_options(address), "socket_timeout": None}  # each call has a limit of its own

    def make(node: cluster.Node, limit: float) -> Awaitable[Any]:
        patience = limit * 0.7 if address.tls else limit  # time to find out why TLS does not work
        return connect(kind(host=node[0], port=node[1], socket_connect_timeout=patience, **options))

    kind: Any = connection.SSLConnection if address.tls else connection.Connection
    match address.kind:
        case "unix":
            kind = connection.UnixDomainSocketConnection
            return pool_tasks.Pool(
                lambda limit: pool_tasks.connect(kind(path=address.path, socket_connect_timeout=limit, **options))
            )
        case "sentinel":
            sentinels = sentinel.Sentinels(address, options)
            return pool_tasks.Pool(lambda limit: sentinel.make_in_task(kind, sentinels, limit))
        case "cluster":
            return cluster_tasks.Cluster(address.hosts, make)
    return pool_tasks.Pool(lambda limit: make(address.hosts[0], limit))


def check_options(address: Address) -> None:
    """See that redis-py takes what the URL adds: connections are made, and not connected. Raises ValueError."""
    from redis.asyncio import connection as connection_tasks

    for module in connection, connection_tasks:
        kind = module.SSLConnection if address.tls else module.Connection
        if address.kind == "unix":
            kind = module.UnixDomainSocketConnection
        for options in _options(address), address.sentinel_options:
            try:
                kind(**options)
            except TypeError as error:
                name = next((name for name in options if f"'{name}'" in str(error)), "")
                only = "; it is for rediss://" if name.startswith("ssl_") else ""
                raise ValueError(f"unknown option {name!r} in the Redis URL{only}") from None
            except redis.RedisError as error:
                raise ValueError(f"bad option in the Redis URL: {error}") from None


def _options(address: Address) -> dict[str, Any]:
    """For redis-py's connections. It is not to send its name and version: two round trips, and a permission more."""
    told = "driver_info" in signature(connection.AbstractConnection).parameters
    silent = {"driver_info": None} if told else {"lib_name": None, "lib_version": None}
    checked = {"ssl_check_hostname": True} if address.tls else {}  # redis-py does so by default since 6.0 only
    return {**checked, **address.options, "protocol": 2, **silent}
