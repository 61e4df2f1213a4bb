"""Where a client of ``redis.asyncio`` connects: for connections of our own, at exit, when its loop is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis.asyncio
from redis.asyncio.connection import BlockingConnectionPool, ConnectionPool, SSLConnection
from redis.asyncio.sentinel import SentinelConnectionPool

from ...errors import StoreUnavailable
from .url import Address


def address_of(client: Any) -> Address:
    """As a URL would say it. Raises StoreUnavailable when the client does not tell: its password goes nowhere else."""
    if isinstance(client, redis.asyncio.RedisCluster):
        given = client.connection_kwargs
        hosts = tuple((node.host, int(node.port)) for node in client.nodes_manager.startup_nodes.values())
        tls = any(name.startswith("ssl") for name in given)
        return Address("cluster", hosts, "", "", tls, 0, _options(given), {})
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
        return Address("sentinel", hosts, "", pool.service_name, tls, 0, _options(given), passwords)
    if "path" in given:
        return Address("unix", (), given["path"], "", False, 0, _options(given), {})
    if "host" not in given and type(pool) not in (ConnectionPool, BlockingConnectionPool):
        raise StoreUnavailable("redis: the client's pool does not show its host and port")
    host = given.get("host", "localhost"), int(given.get("port", 6379))
    return Address("single", (host,), "", "", tls, 0, _options(given), {})


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    plain = ("db", "username", "password", "credential_provider")
    return {name: value for name, value in given.items() if name in plain or name.startswith("ssl_")}
