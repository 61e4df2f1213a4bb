"""What the tests of a quorum share: its nodes, and how to look into one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import redis

from leasehold.stores.redlock import node as redlock_node
from leasehold.stores.redlock import store as redlock
from leasehold.stores.redlock import tasks as redlock_tasks
from leasehold.stores.redlock import threads as redlock_threads
from servers.proxy import Proxy
from servers.redis import Redis


def be_patient(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    for module in (redlock, redlock_node, redlock_tasks, redlock_threads):
        monkeypatch.setattr(module, "SLOWEST", seconds)


def url(nodes: Sequence[Redis]) -> str:
    return "redlock://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def holders(node: Redis, name: str) -> bytes | None:
    return redis.Redis(port=node.port).hget(f"leasehold:{{:{name}}}", "h")


@contextmanager
def behind_a_proxy(nodes: Sequence[Redis]) -> Iterator[tuple[str, Proxy]]:
    """The URL, with the first node reached through a proxy."""
    with Proxy(nodes[0].port) as proxy:
        yield f"redlock://127.0.0.1:{proxy.port}," + url(nodes[1:]).partition("://")[2], proxy
