"""What chaos is made on: each server keeps what it has acknowledged, also when it is killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from servers.base import Server
from servers.clock import FakeClock
from servers.ensemble import Ensemble
from servers.etcd import Etcd, EtcdCluster
from servers.mongodb import MongoDB, MongoReplicaSet
from servers.mysql import MariaDB, MySQL
from servers.postgresql import PostgreSQL
from servers.redis import Redis, Valkey
from servers.redis_ensembles import SentinelSetup
from servers.zookeeper import ZooKeeper, ZooKeeperEnsemble

TTL = 1.0
DURABLE = ("--appendfsync", "always")
NATIVE = 3.2
"""How long after a kill there is rest, where the store ends a dead session later than a ttl of one second."""


class Quorum(Ensemble):
    """Five nodes that know nothing of each other. Unless they are durable, one that is killed comes back empty."""

    def __init__(self, durable: bool = True) -> None:
        options = DURABLE if durable else ()
        self.members = [Redis(*options, append_only=durable) for _ in range(5)]

    @property
    def url(self) -> str:
        return f"redlock://{','.join(member.address for member in self.members)}"

    def settle(self) -> None:
        """They are no one's."""

    def leads(self, member: Server) -> bool:
        return True


class Goals(NamedTuple):
    """How much of what a full run has to bring about, by the names of the report's columns."""

    writes: int = 10_000
    pauses: int = 100
    kills: int = 50
    cuts: int = 40
    server_kills: int = 20
    clock_steps: int = 0
    client_clock_steps: int = 10
    grants_of_50: int = 5_000
    """To fifty clients, without any fault."""


NOTHING = Goals(*[0] * len(Goals._fields))
EMBEDDED = Goals(cuts=0, server_kills=0)
ENSEMBLE = Goals(pauses=35, kills=15, cuts=0, server_kills=10, grants_of_50=0)
"""What is shown of the single server need not be shown of three again: leaders are killed, and holders besides."""
BY_CLOCK = Goals(5_000, pauses=20, kills=10, cuts=0, server_kills=0, clock_steps=20, grants_of_50=0)


class Setup(NamedTuple):
    """A store as it is deployed, and what can be done to it."""

    make: Callable[[], Any] | None = None
    """Its servers, not started yet."""
    by_clock: Callable[[FakeClock], Any] | None = None
    """The same with a wall clock that is set ahead and back by minutes."""
    cuts: bool = True
    """Whether each worker has a way of its own to the servers, which can be cut. Members of a replica set are found by
    the addresses that they give themselves: that leads round the proxies."""
    exclusive: bool = True
    """False where the store itself may forget what it has acknowledged: overlaps are counted, not refused."""
    rest: float = 1.3
    """How long nothing else happens after a kill, so that the takeover is seen by itself."""
    late: float = 1.0
    """How long after the ttl of one that was killed the next has the name, at the latest: its own documented bound."""
    options: str = ""
    """What the URL needs besides."""
    goals: Goals = Goals()
    together: int = 1
    """How many of several members are killed at a time."""
    amnesia: bool = False
    """Whether those come back at once, and empty."""


STORES: dict[str, Setup] = {
    "sqlite": Setup(cuts=False, goals=EMBEDDED),
    "redis": Setup(lambda: Redis(*DURABLE, append_only=True)),
    "valkey": Setup(lambda: Valkey(*DURABLE, append_only=True)),
    "postgresql": Setup(PostgreSQL),
    "mariadb": Setup(MariaDB),
    "mysql": Setup(MySQL),
    "mongodb": Setup(lambda: MongoReplicaSet(members=1), options="directConnection=true"),
    "etcd": Setup(Etcd, rest=NATIVE, late=NATIVE),
    "zookeeper": Setup(ZooKeeper, rest=NATIVE, late=NATIVE),
    "redlock": Setup(Quorum, together=2),
    "redlock-empty": Setup(lambda: Quorum(durable=False), exclusive=False, together=3, amnesia=True, goals=ENSEMBLE),
    "mongodb-3": Setup(MongoReplicaSet, cuts=False, goals=ENSEMBLE),
    "etcd-3": Setup(EtcdCluster, rest=NATIVE, late=NATIVE, goals=ENSEMBLE),
    "zookeeper-3": Setup(ZooKeeperEnsemble, rest=NATIVE, late=NATIVE, goals=ENSEMBLE),
    "redis-sentinel": Setup(SentinelSetup, cuts=False, exclusive=False, goals=ENSEMBLE),
    "valkey-clock": Setup(
        by_clock=lambda clock: Valkey(*DURABLE, append_only=True, env=clock.env), exclusive=False, goals=BY_CLOCK
    ),
    "postgresql-clock": Setup(by_clock=lambda clock: PostgreSQL(env=clock.env), exclusive=False, goals=BY_CLOCK),
    "mariadb-clock": Setup(by_clock=lambda clock: MariaDB(env=clock.env), exclusive=False, goals=BY_CLOCK),
    "mongodb-clock": Setup(by_clock=lambda clock: MongoDB(env=clock.env), exclusive=False, goals=BY_CLOCK),
}


def setup_of(store: str) -> Setup:
    return STORES.get(store, Setup(cuts=False))
