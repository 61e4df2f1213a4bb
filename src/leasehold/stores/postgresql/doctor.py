"""``leasehold doctor``: what is peculiar to PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..common.findings import WARNING, Finding
from ..sql.doctor import Asking, skew


def findings(ask: Asking) -> Iterator[Finding]:
    before = time.time()
    server = float(ask.value("SELECT extract(epoch FROM clock_timestamp())"))
    yield from skew(server, before, time.time())
    if ask.value("SELECT current_setting('fsync')") != "on":
        yield Finding(WARNING, "durability", "fsync is off: a crash can lose acknowledged leases", "turn fsync on")
    elif ask.value("SELECT current_setting('synchronous_commit')") == "off":
        message = "synchronous_commit is off: a crash can lose acknowledged leases"
        yield Finding(
            WARNING, "durability", message, "turn it on for this user: ALTER ROLE … SET synchronous_commit = on"
        )
    names = ask.value("SELECT current_setting('synchronous_standby_names')")
    standbys = ask.value("SELECT count(*) FROM pg_stat_replication")
    if standbys and not names:
        message = f"{standbys} standby(s), none synchronous: a failover can lose the last leases"
        yield Finding(WARNING, "replication", message, "set synchronous_standby_names, or use fencing tokens")
