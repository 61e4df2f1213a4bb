"""``redis://`` and its kin: one server, a primary found through Sentinels, or a cluster; also Valkey.

The stored shape is in ``entry.lua``; the scripts, one per operation, are beside it. ``store.py`` says what is asked,
``threads.py`` and ``tasks.py`` are the drivers, ``pool_*.py`` our own connections.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from redis import connection

from ...protocol import Opened
from . import pool_tasks, pool_threads
from .store import RedisStore
from .tasks import RedisTasks
from .threads import RedisThreads
from .url import Address, parse


def open_url(url: str, namespace: str) -> Opened:
    address = parse(url)
    store = RedisStore("redis", namespace, address.replicas)

    def threads() -> RedisThreads:
        return RedisThreads(store, thread_link(address), address.where, address.replicas)

    def tasks() -> RedisTasks:
        return RedisTasks(store, task_link(address), address.where, threads, address.replicas)

    return Opened(store, threads, tasks)


def thread_link(address: Address) -> pool_threads.Pool:
    options = _options(address)
    if address.kind == "unix":
        kind: Any = connection.UnixDomainSocketConnection
    else:
        kind = connection.SSLConnection if address.tls else connection.Connection
    return pool_threads.Pool(lambda limit: kind(socket_timeout=limit, socket_connect_timeout=limit, **options))


def task_link(address: Address) -> pool_tasks.Pool:
    from redis.asyncio import connection

    options = _options(address)
    if address.kind == "unix":
        kind: Any = connection.UnixDomainSocketConnection
    else:
        kind = connection.SSLConnection if address.tls else connection.Connection

    async def make(limit: float) -> Any:
        made = kind(socket_timeout=None, socket_connect_timeout=limit, **options)
        try:
            await made.connect()
        except BaseException:
            pool_tasks.close(made)
            raise
        return made

    return pool_tasks.Pool(make)


def _options(address: Address) -> dict[str, Any]:
    """For redis-py's connections. It is not to send its name and version: two round trips, and a permission more."""
    told = "driver_info" in signature(connection.AbstractConnection).parameters
    silent = {"driver_info": None} if told else {"lib_name": None, "lib_version": None}
    options = {**address.options, "protocol": 2, **silent}
    if address.kind == "unix":
        options["path"] = address.path
    else:
        options["host"], options["port"] = address.hosts[0]
    return options
