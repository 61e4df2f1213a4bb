"""``leasehold doctor``: what is peculiar to MySQL and MariaDB."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from ..common.findings import WARNING, Finding
from ..sql.doctor import Asking, skew
from .listener import SLEEPING


def findings(ask: Asking) -> Iterator[Finding]:
    before = time.time()
    server = ask.value("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))") / 1e6
    yield from skew(server, before, time.time())
    if int(ask.value("SELECT @@global.innodb_flush_log_at_trx_commit")) != 1:
        message = "innodb_flush_log_at_trx_commit is not 1: a crash can lose acknowledged leases"
        yield Finding(WARNING, "durability", message, "set it to 1")
    galera = ask.row("SHOW GLOBAL STATUS LIKE 'wsrep_ready'")
    if galera is not None and _text(galera[1]).upper() == "ON":
        message = "a Galera cluster: two nodes can each grant a lease before one of them is rolled back"
        yield Finding(WARNING, "cluster", message, "connect all clients of leasehold to the same node")
    yield from _other_users(ask)
    yield from _replication(ask)


def _other_users(ask: Asking) -> Iterator[Finding]:
    """Other database users whose listeners wait for wake-ups, as far as this user may see them (PROCESS)."""
    asleep = "LEFT(INFO, %(length)s) = %(begins)s AND USER <> SUBSTRING_INDEX(USER(), '@', 1) AND DB = DATABASE()"
    users = f"SELECT GROUP_CONCAT(DISTINCT USER) FROM information_schema.PROCESSLIST WHERE {asleep}"
    found = ask.value(users, length=len(SLEEPING), begins=SLEEPING)
    if found is not None:
        message = f"other database users also wait for leases ({_text(found)}): this user's releases cannot wake them"
        advice = "use one database user for all that share leases; otherwise waiters poll, and are not served in order"
        yield Finding(WARNING, "users", message, advice)


def _replication(ask: Asking) -> Iterator[Finding]:
    """Replication, as far as this user may see it (REPLICATION CLIENT, on MariaDB REPLICA MONITOR, and PROCESS)."""
    if ask.may_see("SHOW REPLICA STATUS") is not None:
        message = "this server is a replica and accepts writes: leases need one primary"
        yield Finding(WARNING, "primary", message, "give the URL of the primary, and turn read_only on here")
    counts = ", ".join(f"'Rpl_semi_sync_{who}_clients'" for who in ("master", "source"))
    synchronous = ask.row(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({counts})")
    replicas = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE LEFT(COMMAND, 11) = 'Binlog Dump'"
    connected = ask.row("SHOW GLOBAL STATUS LIKE 'Slaves_connected'")  # MariaDB's, for everybody
    count = max(int(ask.value(replicas)), int(connected[1]) if connected is not None else 0)
    if count and not (synchronous is not None and int(synchronous[1])):
        message = f"{count} replica(s), none semi-synchronous: a failover can lose the last leases"
        yield Finding(WARNING, "replication", message, "turn semi-synchronous replication on, or use fencing tokens")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
