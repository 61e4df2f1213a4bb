"""What asynchronous replication cannot keep, shown on purpose: a failover to a replica that lagged loses a grant.

As the stores' pages say: two may then trust a name at once, until the first fails to renew; tokens rise as long as the
servers' clocks agree, so that what is fenced refuses the first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy
from sql_servers import Database
from test_sql_doctor_faults import Replicating, ReplicatingMySQL, follow

import leasehold
from leasehold import StoreNotReady, fence
from leasehold.core.claim import TAKEN
from leasehold.fence.sql import Fences
from leasehold.stores.sql import doctor as sql_doctor
from leasehold.testing.handles import eventually
from servers.postgresql import PostgreSQL, Standby
from servers.proxy import Proxy

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(300)]


class Pair:
    """A primary, and a replica of it that follows by way of a proxy."""

    def __init__(self, kind: type, start_server: Callable[..., Any], between: Callable[[int], Proxy]) -> None:
        self.primary = Database(start_server(kind))
        sql_doctor.init(self.primary.url)
        self._between = between(self.primary.port)
        if self.primary.is_postgresql:
            self.replica = Database(start_server(Standby, SimpleNamespace(port=self._between.port)))
        else:
            self.replica = Database(start_server(kind))
            sql_doctor.init(self.replica.url)
            self.replica.sql("SET GLOBAL read_only = 1")
            follow(self.replica, self.primary)

    def catch_up(self) -> None:
        """Until the replica has all that the primary has."""
        rows = "SELECT token, state FROM leasehold ORDER BY name"
        eventually(lambda: self.replica.sql(rows) == self.primary.sql(rows) != [], 60)

    def lag(self) -> None:
        """From now on nothing arrives there."""
        if self.primary.is_postgresql:
            self._between.blackhole()
        else:
            self.replica.sql("STOP REPLICA")

    def fail_over(self) -> None:
        self.primary.server.kill()
        if self.primary.is_postgresql:
            self.replica.sql("SELECT pg_promote()")
        else:
            self.replica.sql("RESET REPLICA ALL")
            self.replica.sql("SET GLOBAL read_only = 0")


@pytest.mark.parametrize("kind", [PostgreSQL, Replicating, ReplicatingMySQL], ids=["postgresql", "mariadb", "mysql"])
def test_a_failover_to_a_replica_that_lagged(kind: type, start_server: Callable[..., Any], tmp_path: Path) -> None:
    proxies: list[Proxy] = []

    def proxy(target: int) -> Proxy:
        proxies.append(Proxy(target).start())
        return proxies[-1]

    resource = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/resource.db")
    fences = Fences()
    try:
        pair = Pair(kind, start_server, proxy)
        address = proxy(pair.primary.port)
        with (
            leasehold.connect(pair.primary.at(address.port), ttl=100, owner="first") as first,
            leasehold.connect(pair.replica.url, ttl=100, owner="second") as second,
            resource.connect() as connection,
        ):
            fences.create(connection)
            earlier = first.lock("name").acquire()
            earlier.release()
            pair.catch_up()
            with pytest.raises(StoreNotReady, match="primary"):
                second.lock("name").try_acquire()
            pair.lag()
            old = first.lock("name").acquire()
            fences.check(connection, old)
            pair.fail_over()

            # The new primary has the name as it was before the grant.
            new = second.lock("name").acquire(timeout=60)
            assert old.valid
            assert new.valid, "both trust it"
            assert new.token > old.token > earlier.token, "the two servers have one clock here"
            fences.check(connection, new)
            with pytest.raises(fence.StaleToken):
                fences.check(connection, old)

            # The first learns of it as soon as it reaches the new primary.
            address.target = pair.replica.port
            assert old.lost.wait(90)
            assert old.lost_reason == TAKEN
            assert not old.release()
            assert new.valid
            assert new.release()
    finally:
        resource.dispose()
        for each in proxies:
            each.close()


class Statements(Replicating):
    def command(self) -> list[str]:
        return [*super().command(), "--binlog-format=STATEMENT"]


class StatementsMySQL(Statements, ReplicatingMySQL):
    pass


@pytest.mark.parametrize("kind", [Statements, StatementsMySQL], ids=["mariadb", "mysql"])
def test_a_read_only_replica_repeats_the_statements_of_its_primary(
    kind: type, start_server: Callable[..., Any]
) -> None:
    """Each statement that refuses to write on a read-only server is repeated on one."""
    proxies: list[Proxy] = []

    def proxy(target: int) -> Proxy:
        proxies.append(Proxy(target).start())
        return proxies[-1]

    try:
        pair = Pair(kind, start_server, proxy)
        with (
            leasehold.connect(pair.primary.url, ttl=100) as locks,
            leasehold.connect(pair.primary.url, ttl=100) as others,
        ):
            lease = locks.lock("name").acquire()
            lease.renew()
            with others.semaphore("several", limit=2), locks.semaphore("several", limit=2), locks.all_of("a", "b"):
                lock = others.lock("name")
                with pytest.raises(leasehold.AcquireTimeout):
                    lock.acquire(timeout=0.5)
            waiter = threading.Thread(target=lambda: lock.acquire(timeout=60))
            waiter.start()
            eventually(lambda: (info := locks.inspect("name")) is not None and info.waiters == 1)
            lease.release()
            waiter.join()
            assert others.once("work", version=1).run(lambda: 7).result == 7
            pair.catch_up()
    finally:
        for each in proxies:
            each.close()
