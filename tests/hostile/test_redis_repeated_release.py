"""Redis: a client of the user's that repeats commands by itself does not make a released lease look lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import ConstantBackoff

import leasehold
from leasehold import aio
from leasehold.testing.api import Api, make_api
from leasehold.testing.handles import Locks, eventually
from servers.proxy import Proxy
from servers.redis_ensembles import RedisCluster

pytestmark = pytest.mark.server
OFTEN: Any = 50
"""How often the client repeats what had no answer."""


@pytest.fixture(params=["threads", "asyncio"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    api = make_api(request.param)
    yield api
    assert not api.close()


def release_without_an_answer(api: Api, client: Any, url: str, proxies: list[Proxy]) -> tuple[Any, list[str]]:
    """The server releases the lease and its answer is lost. What ``release`` said, and the events of the lease.

    A release that finds its connection busy, with a call of the listener's say, never reaches the server: then again.
    """
    library: Any = leasehold if api.side == "threads" else aio
    events: list[str] = []
    locks = Locks(api, api.call(library.connect, client))
    locks.real.on_event(lambda event: events.append(event.type))
    with leasehold.connect(url) as other:
        try:
            for _ in range(5):
                locks.lock("a").acquire().release()  # from now on the server knows the scripts
                lease = locks.lock("a", ttl=60).acquire()
                for proxy in proxies:
                    proxy.only("to_server")
                releasing = api.start(lease.real.release)
                eventually(lambda job=releasing: other.inspect("a") is None or job.done())
                released = other.inspect("a") is None
                for proxy in proxies:
                    proxy.reset()
                for proxy in proxies:
                    proxy.all_well()
                said = releasing.error() or releasing.result()
                if released:
                    return said, events
                assert isinstance(said, leasehold.StoreUnavailable)
        finally:
            locks.close()
    raise AssertionError("no release has reached the server")


def check(said: Any, events: list[str]) -> None:
    assert said is not False, "a lease that was released was reported as lost"
    assert "lost" not in events


def test_release_that_a_client_would_repeat_is_not_a_loss(api: Api, redis_server: Any) -> None:
    kind: Any = redis.Redis if api.side == "threads" else redis.asyncio.Redis
    retry: Any = redis.retry.Retry if api.side == "threads" else redis.asyncio.retry.Retry
    with Proxy(redis_server.port) as proxy:
        client = api.call(lambda: kind(port=proxy.port, retry=retry(ConstantBackoff(0.1), OFTEN)))
        check(*release_without_an_answer(api, client, redis_server.url, [proxy]))
        api.call(client.close if api.side == "threads" else client.aclose)


@pytest.mark.variant
def test_release_that_a_cluster_client_would_repeat_is_not_a_loss(api: Api, redis_cluster: RedisCluster) -> None:
    kind: Any = redis.RedisCluster if api.side == "threads" else redis.asyncio.RedisCluster
    retry: Any = redis.retry.Retry if api.side == "threads" else redis.asyncio.retry.Retry
    with ExitStack() as stack:
        proxies = {each.port: stack.enter_context(Proxy(each.port)) for each in redis_cluster.members}
        client = api.call(
            lambda: kind(
                host="127.0.0.1",
                port=proxies[redis_cluster.members[0].port].port,
                address_remap=lambda node: (node[0], proxies[node[1]].port if node[1] in proxies else node[1]),
                retry=retry(ConstantBackoff(0.1), OFTEN),
            )
        )
        check(*release_without_an_answer(api, client, redis_cluster.url, list(proxies.values())))
        api.call(client.close if api.side == "threads" else client.aclose)
