"""Every kind of server starts, answers, and can be paused, killed, brought back and wiped."""

import base64
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from . import etcd, mongodb, mysql, postgresql, reaper, redis, zookeeper
from .base import NotReady, Server
from .clock import FakeClock
from .ensemble import Ensemble
from .etcd import Etcd, EtcdCluster
from .mongodb import MongoDB, MongoReplicaSet
from .mysql import MariaDB, MySQL
from .plugin import Given
from .postgresql import PostgreSQL
from .process import wait_until
from .redis import Redis, Valkey
from .redis_ensembles import RedisCluster, SentinelSetup
from .zookeeper import ZooKeeper, ZooKeeperEnsemble

pytestmark = [pytest.mark.server, pytest.mark.timeout(360)]  # several starts of a server, each of many seconds

StartServer = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """How to start a kind so that it keeps its data, and how to write a word there and read it again."""

    make: Callable[[], Server]
    write: Callable[[int, str], object]
    read: Callable[[int], object]


def redis_write(port: int, value: str) -> None:
    redis.ask(port, "SET", "kept", value)


def redis_read(port: int) -> str | None:
    value = redis.ask(port, "GET", "kept")
    return value.decode() if isinstance(value, bytes) else None


def mongodb_write(port: int, value: str) -> None:
    journaled = {"w": 1, "j": True}  # else it may be written up to 100 ms later
    documents = [{"_id": value}]
    mongodb.ask(port, {"insert": "kept", "documents": documents, "writeConcern": journaled, "$db": "test"}, 30)


def mongodb_read(port: int) -> str | None:
    reply = mongodb.ask(port, {"find": "kept", "$db": "test"})
    _, found, rest = reply.partition(b"\x02_id\0")
    return rest[4:].split(b"\0")[0].decode() if found else None


def postgresql_write(port: int, value: str) -> None:
    postgresql.query(port, f"CREATE TABLE kept AS SELECT text '{value}' AS value")


def postgresql_read(port: int) -> str | None:
    return postgresql.query(port, "SELECT value FROM kept")


def mysql_write(port: int, value: str) -> None:
    mysql.query(port, f"CREATE TABLE leasehold.kept AS SELECT '{value}' AS value", timeout=30)


def mysql_read(port: int) -> str | None:
    return mysql.query(port, "SELECT value FROM leasehold.kept")


def etcd_write(port: int, value: str) -> None:
    etcd.ask(port, "kv/put", {"key": etcd.b64("kept"), "value": etcd.b64(value)})


def etcd_read(port: int) -> str | None:
    found = etcd.ask(port, "kv/range", {"key": etcd.b64("kept")}).get("kvs", [])
    return base64.b64decode(found[0]["value"]).decode() if found else None


def zookeeper_write(port: int, value: str) -> None:
    zookeeper.create(port, "/kept", value)


def zookeeper_read(port: int) -> str | None:
    return zookeeper.get(port, "/kept")


CASES = {
    "redis": Case(lambda: Redis(append_only=True), redis_write, redis_read),
    "valkey": Case(lambda: Valkey(append_only=True), redis_write, redis_read),
    "mongodb": Case(MongoDB, mongodb_write, mongodb_read),
    "postgresql": Case(PostgreSQL, postgresql_write, postgresql_read),
    "mariadb": Case(MariaDB, mysql_write, mysql_read),
    "mysql": Case(MySQL, mysql_write, mysql_read),
    "etcd": Case(Etcd, etcd_write, etcd_read),
    "zookeeper": Case(ZooKeeper, zookeeper_write, zookeeper_read),
}
every_kind = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def read(case: Case, server: Server) -> object:
    try:
        return case.read(server.port)
    except NotReady:  # no such table, no such node
        return None


@every_kind
def test_a_paused_server_is_silent_until_it_is_resumed(case: Case, start_server: StartServer) -> None:
    server = start_server(case.make)
    assert server.answers(timeout=10)
    assert server.port < 32768
    assert f":{server.port}" in server.url

    server.pause()
    assert not server.answers(timeout=0.2)
    with pytest.raises(TimeoutError):  # silent, not gone: whoever connects is left waiting
        server.ping(timeout=0.2)

    server.resume()
    wait_until(server.answers, "an answer after the pause")


@every_kind
def test_a_killed_server_comes_back_with_its_data(case: Case, start_server: StartServer) -> None:
    server = start_server(case.make)
    port = server.port
    case.write(port, "treasure")

    server.kill()
    with pytest.raises(ConnectionRefusedError):
        server.ping(timeout=10)

    server.start()
    assert server.port == port
    assert read(case, server) == "treasure"

    server.restart()
    assert read(case, server) == "treasure"

    server.restart(wipe=True)
    assert read(case, server) is None


def test_redis_without_append_only_forgets(start_server: StartServer) -> None:
    server = start_server(Redis)
    redis_write(server.port, "treasure")
    server.restart()
    assert redis_read(server.port) is None


@pytest.mark.parametrize("kind", CASES)
def test_the_shared_fixture_answers(kind: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(f"{kind}_server")
    assert server.kind == kind
    assert isinstance(server, Given) or server.answers(timeout=10)


SHARED: dict[str, Server | Given] = {}


@pytest.mark.parametrize("turn", ["first", "second"])
def test_tests_of_one_worker_share_the_server(turn: str, redis_server: Server | Given) -> None:
    assert SHARED.setdefault("redis", redis_server) is redis_server, turn


@pytest.mark.parametrize("make", [SentinelSetup, MongoReplicaSet, EtcdCluster, ZooKeeperEnsemble])
def test_another_member_leads_when_the_leader_is_killed(
    make: Callable[[], Ensemble], start_server: StartServer
) -> None:
    ensemble = start_server(make)
    first = ensemble.leader()

    first.kill()
    second = ensemble.leader(other_than=first)
    assert second in ensemble.members
    assert second is not first

    first.start()
    assert ensemble.leader() in ensemble.members  # one leader, not two
    # A member that follows may lose its leader once more, and does not answer until it has found the next.
    wait_until(lambda: all(member.answers(timeout=10) for member in ensemble.members), "all members to answer")


def test_a_replica_set_of_one_has_a_primary(mongodb_replica_set: MongoReplicaSet) -> None:
    assert mongodb_replica_set.leader() is mongodb_replica_set.members[0]


def test_a_redis_cluster_serves_only_while_it_is_whole(start_server: StartServer) -> None:
    cluster = start_server(RedisCluster, silence=1.0)
    first, second, third = (member.port for member in cluster.members)

    def answer(port: int, *words: str) -> object:
        """Of a cluster that is whole: one of it may have been silent for want of a processor."""
        replies: list[object] = []

        def answered() -> bool:
            try:
                replies.append(redis.ask(port, *words))
            except NotReady as refused:
                replies.append(str(refused))
            return "CLUSTERDOWN" not in str(replies[-1])

        wait_until(answered, "the cluster to serve")
        return replies[-1]

    # `foo` is in slot 12182, the last third; `b` in 3300, the first.
    assert answer(third, "SET", "foo", "1") == b"OK"
    assert answer(first, "GET", "foo") == f"MOVED 12182 127.0.0.1:{third}"

    cluster.members[1].kill()

    def down() -> bool:
        try:
            redis.ask(first, "GET", "b")
        except NotReady as refused:
            return "CLUSTERDOWN" in str(refused)
        return False

    wait_until(down, "the cluster to miss a node")
    cluster.members[1].start()
    cluster.settle()
    assert second == cluster.members[1].port
    assert answer(third, "GET", "foo") == b"1"


def mongodb_time(port: int) -> float:
    _, _, rest = mongodb.ask(port, {"hello": 1, "$db": "admin"}).partition(b"\x09localTime\0")
    return int.from_bytes(rest[:8], "little") / 1000


CLOCKS: dict[type[Server], Callable[[int], Any]] = {
    Valkey: lambda port: redis.ask(port, "TIME")[0],  # type: ignore[index]
    PostgreSQL: lambda port: postgresql.query(port, "SELECT extract(epoch FROM clock_timestamp())"),
    MariaDB: lambda port: mysql.query(port, "SELECT unix_timestamp()"),
    MongoDB: mongodb_time,
}


@pytest.mark.parametrize(("make", "read_clock"), CLOCKS.items())
def test_the_clock_of_a_server_can_be_stepped_while_it_runs(
    make: type[Server], read_clock: Callable[[int], Any], start_server: StartServer
) -> None:
    clock = FakeClock()
    server = start_server(make, env=clock.env)

    def stepped(by: float) -> bool:
        return abs(float(read_clock(server.port)) - time.time() - by) < 5

    for offset in (0.0, 300.0, -300.0):
        clock.step(offset)
        wait_until(partial(stepped, offset), f"the clock to be {offset} s ahead")


def test_postgresql_backends_are_paused_and_killed_with_the_server(start_server: StartServer) -> None:
    """Each backend is in a session of its own, which a signal to the server's process group does not reach."""
    server = start_server(PostgreSQL)
    with psycopg.connect(server.url, autocommit=True) as connection:
        backend = connection.info.backend_pid
        server.pause()
        with socket.socket(fileno=os.dup(connection.fileno())) as wire:
            wire.settimeout(0.3)
            wire.sendall(b"Q\0\0\0\x0dSELECT 1\0")
            with pytest.raises(TimeoutError):
                wire.recv(1)
        server.kill()
        assert not Path(f"/proc/{backend}").exists() or reaper.stat(Path(f"/proc/{backend}"))[0] == "Z"
