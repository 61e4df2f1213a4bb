"""``doctor`` for Redis: each ill that it knows is found, and it says how to mend it."""

import pytest
import redis

from leasehold.stores.redis.doctor import Finding, doctor
from servers.clock import FakeClock
from servers.redis import Redis, Valkey
from servers.redis_ensembles import RedisCluster, SentinelSetup


def ills(url: str) -> dict[str, Finding]:
    found = {finding.what: finding for finding in doctor(url) if finding.level != "ok"}
    assert all(finding.mend for finding in found.values())
    return found


def test_a_healthy_server(start_server) -> None:
    server = start_server(Redis, append_only=True)
    assert ills(server.url) == {}
    assert any("Redis 7" in finding.what for finding in doctor(server.url))
    assert [key for key in redis.Redis(port=server.port).scan_iter() if b"doctor" not in key] == []


def test_settings_that_harm(start_server) -> None:
    server = start_server(Redis)
    redis.Redis(port=server.port).config_set("maxmemory", "2mb")
    redis.Redis(port=server.port).config_set("maxmemory-policy", "allkeys-lru")
    found = ills(f"{server.url}?replicas=2")
    assert set(found) >= {
        "maxmemory-policy is allkeys-lru",
        "appendonly is off",
        "replicas=2, but 0 are connected",
    }


def test_a_replica_and_its_primary(redis_sentinels: SentinelSetup) -> None:
    primary = next(member for member in redis_sentinels.members if redis_sentinels.leads(member))
    replica = next(member for member in redis_sentinels.members if member is not primary)
    assert "it is a replica" in ills(replica.url)
    assert "replication is asynchronous" in ills(primary.url)
    assert "min-replicas-to-write is 0" in ills(redis_sentinels.url)


def test_a_user_without_permission(start_server) -> None:
    server = start_server(Redis)
    redis.Redis(port=server.port).execute_command(
        "ACL", "SETUSER", "poor", "on", ">pw", "~*", "+ping", "+time", "+evalsha"
    )
    found = ills(server.url.replace("redis://", "redis://poor:pw@"))
    assert "ACL" in found["a lease cannot be taken"].mend
    assert "INFO is not allowed to this user" in found


def test_a_clock_that_is_off(start_server) -> None:
    clock = FakeClock()
    server = start_server(Valkey, env=clock.env)
    clock.step(300)
    assert any("clock differs" in what for what in ills(server.url))


@pytest.mark.parametrize("url", ["redis://:s3cret@127.0.0.1:1/0", "rediss://:s3cret@127.0.0.1:1/0"])
def test_unreachable(url: str) -> None:
    (finding,) = doctor(url)
    assert finding.what == "cannot be reached"
    assert "s3cret" not in repr(finding)


def test_a_cluster_and_a_quorum(redis_cluster: RedisCluster, start_server) -> None:
    assert all(finding.level == "ok" for finding in doctor(redis_cluster.url)), doctor(redis_cluster.url)
    nodes = [start_server(Redis, append_only=True) for _ in range(4)]
    found = ills("redlock://" + ",".join(node.address for node in nodes))
    assert list(found) == ["4 nodes"]
