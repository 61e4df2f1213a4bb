"""``doctor`` for Redis: each ill that it knows is found, and it says how to mend it."""

import time

import pytest
import redis

from leasehold.admin import doctor
from leasehold.findings import Finding
from servers.clock import FakeClock
from servers.redis import Redis, Valkey
from servers.redis_ensembles import RedisCluster, SentinelSetup


def ills(url: str) -> dict[str, Finding]:
    found = {finding.message: finding for finding in doctor(url) if finding.level != "ok"}
    assert all(finding.advice for finding in found.values())
    return found


def test_a_healthy_server(start_server) -> None:
    server = start_server(Redis, append_only=True)
    assert ills(server.url) == {}
    assert any("Redis 7" in finding.message for finding in doctor(server.url))
    assert [key for key in redis.Redis(port=server.port).scan_iter() if b"doctor" not in key] == []


def test_settings_that_harm(start_server) -> None:
    """B6."""
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
    primary = redis_sentinels.leader()
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
    assert "ACL" in found["a lease cannot be taken"].advice
    assert "INFO is not allowed to this user" in found


def test_a_user_of_one_namespace(start_server) -> None:
    server = start_server(Redis)
    redis.Redis(port=server.port).execute_command(
        *("ACL", "SETUSER", "billing", "on", ">pw", "~leasehold:{billing:*", "&leasehold:session:*", "+@all")
    )
    url = server.url.replace("redis://", "redis://billing:pw@")
    assert not [finding for finding in doctor(url, namespace="billing") if finding.level == "error"]
    assert [finding for finding in doctor(url, namespace="other") if finding.level == "error"]


def test_a_clock_that_is_off(start_server) -> None:
    clock = FakeClock()
    server = start_server(Valkey, env=clock.env)
    before = redis.Redis(port=server.port).time()[0]
    clock.step(300)
    while redis.Redis(port=server.port).time()[0] < before + 300:  # it obeys a moment later
        time.sleep(0.01)
    assert any("clock differs" in what for what in ills(server.url))


@pytest.mark.parametrize("url", ["redis://:s3cret@127.0.0.1:1/0", "rediss://:s3cret@127.0.0.1:1/0"])
def test_unreachable(url: str) -> None:
    (finding,) = doctor(url)
    assert finding.message == "cannot be reached"
    assert "s3cret" not in repr(finding)


def test_a_cluster_and_a_quorum(redis_cluster: RedisCluster, start_server) -> None:
    seed = f"redis+cluster://{redis_cluster.members[0].address}"
    for url in (redis_cluster.url, seed):
        findings = doctor(url)
        assert all(finding.level == "ok" for finding in findings), findings
        assert len({finding.subject for finding in findings}) == 3, "each master, also when the URL names but one"
    with pytest.raises(ValueError, match="three or more"):
        doctor("redlock://h1,h2")
    nodes = [start_server(Redis, append_only=True) for _ in range(4)]
    found = ills("redlock://" + ",".join(node.address for node in nodes))
    assert list(found) == ["4 nodes"]
