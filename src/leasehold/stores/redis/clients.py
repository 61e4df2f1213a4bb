"""What a client that the user made says about where it connects, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis.asyncio
from redis.asyncio.connection import BlockingConnectionPool, ConnectionPool, SSLConnection
from redis.asyncio.sentinel import SentinelConnectionPool

from ...errors import StoreUnavailable
from .cluster import Cluster
from .requests import NodeAddress
from .transport_tasks import TaskTransport, connect
from .transport_threads import ThreadTransport
from .url import RedisAddress


def cluster_in_threads(client: Any) -> ThreadTransport:
    """The nodes and settings of a ``RedisCluster``, and connections of our own.

    Not its commands: it repeats a command that had no answer, and a release that is done twice looks like a loss."""

    def make(node: NodeAddress | None, limit: float) -> Any:
        pool = client.get_redis_connection(client.get_default_node()).connection_pool
        return pool.connection_class(**_settings(client, pool.connection_kwargs, node, limit, limit))

    return ThreadTransport(Cluster([(node.host, int(node.port)) for node in client.get_nodes()]), make)


def cluster_in_tasks(client: Any) -> TaskTransport:
    """As ``cluster_in_threads``."""
    start = list(client.nodes_manager.startup_nodes.values())  # all nodes, once the client has asked

    async def make(node: NodeAddress | None, limit: float) -> Any:
        options = _settings(client, start[0].connection_kwargs, node, limit, None)  # each call has a limit of its own
        return await connect(start[0].connection_class(**options))

    return TaskTransport(Cluster([(node.host, int(node.port)) for node in start]), make)


def _settings(
    client: Any, given: Mapping[str, Any], node: NodeAddress | None, to_connect: float, to_answer: float | None
) -> dict[str, Any]:
    """For a connection to this node. Its address may have to be mapped, unless it is one that the client uses."""
    assert node is not None
    host, port = node if client.get_node(*node) else client.nodes_manager.remap_host_port(*node)
    ours = {"host": host, "port": port, "socket_connect_timeout": to_connect, "socket_timeout": to_answer}
    # Notifications of maintenance, which new clients ask for, need RESP3. Retries would exceed the limit.
    theirs = {name: value for name, value in given.items() if not name.startswith(("maint_notifications", "retry"))}
    return {**theirs, **ours, "protocol": 2}


def address_of(client: Any) -> RedisAddress:
    """As a URL would say it. Raises StoreUnavailable when the client does not tell: its password goes nowhere else."""
    if isinstance(client, redis.asyncio.RedisCluster):
        given = client.connection_kwargs
        hosts = tuple((node.host, int(node.port)) for node in client.nodes_manager.startup_nodes.values())
        tls = any(name.startswith("ssl") for name in given)
        return RedisAddress("cluster", hosts, "", "", tls, 0, _options(given), {})
    pool = client.connection_pool
    given, tls = pool.connection_kwargs, issubclass(pool.connection_class, SSLConnection)
    if isinstance(pool, SentinelConnectionPool):
        sentinels = [each.connection_pool for each in pool.sentinel_manager.sentinels]
        if {issubclass(each.connection_class, SSLConnection) for each in sentinels} != {tls}:
            raise StoreUnavailable(
                "redis: the client must use TLS for both the Sentinels and the primary, or for neither"
            )
        hosts = tuple((each.connection_kwargs["host"], int(each.connection_kwargs["port"])) for each in sentinels)
        of_sentinels = sentinels[0].connection_kwargs
        passwords = {name: of_sentinels[name] for name in ("username", "password") if of_sentinels.get(name)}
        return RedisAddress("sentinel", hosts, "", pool.service_name, tls, 0, _options(given), passwords)
    if "path" in given:
        return RedisAddress("unix", (), given["path"], "", False, 0, _options(given), {})
    if "host" not in given and type(pool) not in (ConnectionPool, BlockingConnectionPool):
        raise StoreUnavailable("redis: the client's pool does not show its host and port")
    host = given.get("host", "localhost"), int(given.get("port", 6379))
    return RedisAddress("single", (host,), "", "", tls, 0, _options(given), {})


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    plain = ("db", "username", "password", "credential_provider")
    return {name: value for name, value in given.items() if name in plain or name.startswith("ssl_")}
