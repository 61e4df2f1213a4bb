"""A ``RedisCluster`` that the user has made: its nodes and settings, and connections of our own.

Not its commands: it repeats a command that had no answer, and a release that is done twice looks like a loss.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from . import cluster_tasks, cluster_threads, pool_tasks
from .cluster import Node


def in_threads(client: Any) -> cluster_threads.Cluster:
    def make(node: Node, limit: float) -> Any:
        pool = client.get_redis_connection(client.get_default_node()).connection_pool
        return pool.connection_class(**settings(client, pool.connection_kwargs, node, limit, limit))

    return cluster_threads.Cluster([(node.host, int(node.port)) for node in client.get_nodes()], make)


def in_tasks(client: Any) -> cluster_tasks.Cluster:
    start = list(client.nodes_manager.startup_nodes.values())  # all, once the client has asked

    def make(node: Node, limit: float) -> Awaitable[Any]:
        options = settings(client, start[0].connection_kwargs, node, limit, None)  # each call has a limit of its own
        return pool_tasks.connect(start[0].connection_class(**options))

    return cluster_tasks.Cluster([(node.host, int(node.port)) for node in start], make)


def settings(
    client: Any, given: Mapping[str, Any], node: Node, to_connect: float, to_answer: float | None
) -> dict[str, Any]:
    """For a connection to this node. Its address may have to be mapped, unless it is one that the client uses."""
    host, port = node if client.get_node(*node) else client.nodes_manager.remap_host_port(*node)
    ours = {"host": host, "port": port, "socket_connect_timeout": to_connect, "socket_timeout": to_answer}
    # Notifications of maintenance, which new clients ask for, need RESP3.
    theirs = {name: value for name, value in given.items() if not name.startswith("maint_notifications")}
    return {**theirs, **ours, "protocol": 2}
