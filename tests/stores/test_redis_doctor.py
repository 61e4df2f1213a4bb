"""``doctor`` for Redis: each ill that it knows is found, and it says how to mend it."""

import re
import time
from pathlib import Path

import pytest
import redis

from leasehold.admin import doctor
from leasehold.stores.common.findings import Finding
from servers.clock import FakeClock
from servers.redis import Redis, Valkey
from servers.redis_ensembles import RedisCluster, SentinelSetup

PAGE = Path(__file__).parents[2] / "docs" / "stores" / "redis.md"


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
    assert "this server is a replica" in ills(replica.url)
    assert "replication is asynchronous" in ills(primary.url)
    assert "min-replicas-to-write is 0" in ills(redis_sentinels.url)


def test_a_user_without_permission(start_server) -> None:
    server = start_server(Redis)
    redis.Redis(port=server.port).execute_command(
        "ACL", "SETUSER", "poor", "on", ">pw", "~*", "+ping", "+time", "+evalsha"
    )
    found = ills(server.url.replace("redis://", "redis://poor:pw@"))
    assert "ACL" in found["cannot acquire a lease"].advice
    assert "this user may not run INFO" in found


def acl_line() -> list[str]:
    """The rules of a user who may do what leasehold needs, as documented."""
    found = re.search(r"^ACL SETUSER \S+ (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1].split()


def told(rule: str) -> str:
    """What is said of a user who lacks it."""
    if rule in ("+ping", "+select", "+role"):  # no connection: none at all, to that database, to a primary
        return "cannot be reached"
    if rule == "+time":
        return "this user may not run TIME"
    what = {"~": "use leasehold's keys", "&": "use leasehold's channels"}.get(rule[0], f"run {rule[1:].upper()}")
    return f"this user may not {what}"


@pytest.mark.parametrize("rule", [rule for rule in acl_line() if rule[0] in "+~&"])
def test_a_user_who_lacks_one_permission(request: pytest.FixtureRequest, rule: str) -> None:
    """Each that some operation needs at some time is asked for, also what is not needed to take a free name."""
    kinds = {"+cluster|slots": "redis_cluster", "+asking": "redis_cluster", "+role": "redis_sentinels"}
    store = request.getfixturevalue(kinds.get(rule, "redis_server"))
    url = store.url if rule in kinds else f"{store.url.removesuffix('/0')}/1?replicas=1"
    servers = [redis.Redis(port=server.port) for server in getattr(store, "members", [store])]
    for server in servers:
        server.execute_command("ACL", "SETUSER", "doctored", "reset", *(each for each in acl_line() if each != rule))
    found = ills(url.replace("://", "://doctored:password@"))
    for server in servers:
        server.execute_command("ACL", "DELUSER", "doctored")
    finding = found.pop(told(rule))
    assert finding.level == ("warning" if rule in ("+scan", "+subscribe") else "error")
    assert "ACL" in finding.advice
    others = {message for message in found if message.startswith("this user may not")}
    assert others <= {"this user may not run INFO"}


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
