"""``leasehold doctor`` for Redis, Valkey and Redlock.

It only reads, except for one test lease, which it acquires and releases.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import MovedError

from ...core import clock
from ...core.protocol import run_steps
from ...errors import StoreError
from ..common.findings import ERROR, OK, WARNING, Finding
from .cluster import Cluster
from .errors import DRIVER_ERRORS, text_of, translate
from .requests import NodeAddress, PlainCommand
from .transport_threads import ThreadTransport
from .url import RedisAddress, parse

LIMIT = 5.0
OLDEST = (6, 2)
SKEW = 1.0
"""Seconds between the server's clock and this machine's that are worth a warning."""
NAME = "leasehold-doctor"
CHANNEL = "leasehold:session:doctor"


def doctor(url: str, namespace: str = "") -> list[Finding]:
    """Check the server (the primary, if the URL names Sentinels), each master of a cluster, each node of a quorum.

    Raises ValueError for a bad URL; any other problem is a finding."""
    from ..redlock.store import nodes_of
    from . import check_options

    if url.lower().startswith("redlock://"):
        nodes = nodes_of(url)
        check_options(nodes[0])
        found = [finding for node in nodes for finding in examine(node, namespace)]
        if len(nodes) % 2 == 0:
            advice = "add one: an even number tolerates no more failures than one less"
            found.append(Finding(WARNING, "redlock", f"{len(nodes)} nodes", advice))
        return found
    address = parse(url)
    check_options(address)
    if address.kind != "cluster":
        return examine(address, namespace)
    nodes = [address._replace(kind="single", hosts=(host,)) for host in masters(address)]
    return [finding for node in nodes for finding in examine(node, namespace, one_of_many=True)]


def masters(address: RedisAddress) -> Sequence[NodeAddress]:
    """All masters of a cluster, even if the URL names only some; the hosts of the URL if none of them answers."""
    from . import thread_transport

    transport = thread_transport(address)
    assert isinstance(transport.topology, Cluster)
    try:
        return run_steps(transport.topology.masters(clock.now() + LIMIT), transport.carry_out)
    except DRIVER_ERRORS:
        return address.hosts
    finally:
        transport.close()


def examine(address: RedisAddress, namespace: str = "", one_of_many: bool = False) -> list[Finding]:
    """Check one server. ``one_of_many``: it is a node of a cluster, which does not have all slots."""
    from . import thread_transport

    transport = thread_transport(address)
    patient = Patient(transport, address.where)
    try:
        patient.reach()
        if patient.reachable:
            patient.version()
            patient.memory()
            patient.persistence()
            patient.replication(address.replicas)
            patient.clock()
            patient.permissions(namespace, address.replicas, one_of_many)
            patient.scripts(namespace, one_of_many)
    finally:
        transport.close()
    return patient.findings


class Patient:
    """One server, and its findings."""

    def __init__(self, transport: ThreadTransport, where: str) -> None:
        self._transport = transport
        self._where = where
        self._info: dict[str, str] = {}
        self.reachable = False
        self.findings: list[Finding] = []

    def _say(self, level: str, message: str, advice: str = "") -> None:
        self.findings.append(Finding(level, self._where, message, advice))

    def _ask(self, *command: str) -> Any:
        return self._do(PlainCommand(tuple(word.encode() for word in command)))

    def _do(self, request: Any) -> Any:
        return self._transport.do(request, clock.now() + LIMIT)

    def reach(self) -> None:
        try:
            self._ask("PING")
        except DRIVER_ERRORS as error:
            self._say(ERROR, "cannot be reached", str(translate(error, self._where)))
            return
        self.reachable = True
        try:
            text = self._ask("INFO").decode("utf-8", "replace")
            self._info = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        except DRIVER_ERRORS:
            self._say(WARNING, "this user may not run INFO", "run doctor as an administrator to see more")

    def version(self) -> None:
        name, text = "Valkey", self._info.get("valkey_version")
        if text is None:
            name, text = "Redis", self._info.get("redis_version")
        if text is None:
            return
        number = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
        if name == "Redis" and number < OLDEST:
            self._say(ERROR, f"Redis {text}", "upgrade: leasehold needs Redis 6.2 or later, or Valkey")
        else:
            self._say(OK, f"{name} {text}")

    def memory(self) -> None:
        policy, most = self._info.get("maxmemory_policy"), int(self._info.get("maxmemory", 0))
        if policy is None:
            return
        used = int(self._info.get("used_memory", 0))
        if policy == "noeviction":
            self._say(OK, "maxmemory-policy is noeviction")
        elif most:
            self._say(
                WARNING,
                f"maxmemory-policy is {policy}",
                "leases can be evicted and granted twice: use noeviction, or a separate server for leasehold",
            )
        else:
            self._say(OK, f"maxmemory-policy is {policy}, but there is no maxmemory")
        if most and used > 0.9 * most:
            message = f"{used * 100 // most} % of maxmemory is used"
            self._say(WARNING, message, "raise maxmemory: when the server is full, no lease can be acquired")

    def persistence(self) -> None:
        if "aof_enabled" not in self._info:
            return
        if self._info["aof_enabled"] == "1":
            self._say(OK, "appendonly is on")
            if self._info.get("aof_last_write_status") not in ("ok", None):
                self._say(ERROR, "the append-only file cannot be written", "see the server's log; is the disk full?")
        else:
            self._say(
                WARNING,
                "appendonly is off",
                "a restart loses all leases: set 'appendonly yes', and 'appendfsync always' for a quorum",
            )
        if self._info.get("rdb_last_bgsave_status") == "err":
            self._say(ERROR, "the last snapshot failed", "the server may refuse writes: see its log")

    def replication(self, wanted: int) -> None:
        role = self._info.get("role")
        if role is None:
            return
        if role != "master":
            self._say(ERROR, "this server is a replica", "give the primary's address, or use redis+sentinel://")
            return
        replicas = int(self._info.get("connected_slaves", 0))
        self._say(OK, f"primary with {replicas} replicas")
        if replicas < wanted:
            message = f"replicas={wanted}, but {replicas} are connected"
            self._say(ERROR, message, "add replicas: no lease can be acquired")
        if replicas and not wanted:
            advice = "a failover can lose leases: add ?replicas=1, and use fencing tokens"
            self._say(WARNING, "replication is asynchronous", advice)
        if replicas and self._info.get("min_slaves_good_slaves") is None:
            self._say(WARNING, "min-replicas-to-write is 0", "set it to 1: an isolated primary keeps granting leases")

    def clock(self) -> None:
        before = time.time()
        try:
            seconds, micros = self._ask("TIME")
        except DRIVER_ERRORS as error:
            self._say(ERROR, "this user may not run TIME", str(translate(error, self._where)))
            return
        after = time.time()
        off = int(seconds) + int(micros) / 1e6 - (before + after) / 2
        if abs(off) > SKEW + (after - before):
            self._say(
                WARNING,
                f"the server's clock differs from this machine's by {off:+.1f} s",
                "leases are safe, but one of the two clocks is not synchronised: check NTP",
            )
        else:
            self._say(OK, f"the server's clock agrees with this machine's ({off * 1000:+.0f} ms)")

    def permissions(self, namespace: str, replicas: int, clustered: bool) -> None:
        """Try each command that some operation needs, inside a script or not, on keys of a test name.

        The server checks the ACL first, so neither a slot on another node nor a replica hides a refusal. Only the test
        record is left. It expires, unless PEXPIRE is refused."""
        from .store import RedisStore

        key, queue = (each.decode() for each in RedisStore("redis", namespace).keys(NAME))
        always = [
            *(("EVAL", "return 1", "0"), ("EVALSHA", "0" * 40, "0")),
            *(("HMGET", key, "f"), ("HGET", key, "f"), ("HSET", key, "f", "1"), ("HDEL", key, "-")),
            *(("PEXPIRE", key, "86400000"), ("ZADD", queue, "XX", "1", "-"), ("ZREM", queue, "-")),
            *(("ZRANK", queue, "-"), ("ZRANGE", queue, "0", "0"), ("ZCARD", queue), ("PUBLISH", CHANNEL, "")),
        ]
        if replicas:
            always.append(("WAIT", "0", "1"))
        if clustered:
            always += [("CLUSTER", "SLOTS"), ("ASKING",)]
        for command in always:
            self._may(ERROR, "leases need it", *command)
        self._may(WARNING, "listings need it: ls, stats, leases(), metrics()", "SCAN", "0", "MATCH", key, "COUNT", "1")
        try:
            self._transport.subscribe(CHANNEL, LIMIT).close()
        except DRIVER_ERRORS as error:
            self._refused(WARNING, "without it waiters poll, and are granted later", "SUBSCRIBE", error)

    def _may(self, level: str, why: str, *command: str) -> None:
        try:
            self._ask(*command)
        except DRIVER_ERRORS as error:
            name = "CLUSTER|SLOTS" if command[0] == "CLUSTER" else command[0]
            self._refused(level, why, name, error)

    def _refused(self, level: str, why: str, command: str, error: BaseException) -> None:
        """Report a missing permission. One that concerns all keys, or all channels, is reported once."""
        text = text_of(error)
        if "NOPERM" not in text:
            return
        message, mend = f"this user may not run {command}", f"+{command.lower()}"
        if "to run the" in text:
            pass  # a command; not by the checks below, because the text has the user's name, which may be anything
        elif "key" in text:
            message, mend = "this user may not use leasehold's keys", "~leasehold:*"
        elif "channel" in text:
            message, mend = "this user may not use leasehold's channels", "&leasehold:session:*"
        if all(finding.message != message for finding in self.findings):
            self._say(level, message, f"{why}: add {mend} to the user's ACL")

    def scripts(self, namespace: str, one_of_many: bool) -> None:
        """Acquire and release a test lease. A node of a cluster may not have its slot."""
        from ...core.protocol import Ask
        from .store import RedisStore

        store = RedisStore("redis", namespace)
        ask = Ask(NAME, os.urandom(16).hex(), "doctor", "doctor", None, 1_000_000)
        taking = store.acquire(ask)
        try:
            reply = self._do(next(taking))
            self._do(next(store.release(NAME, ask.attempt, reply[1], None)))
        except (StoreError, *DRIVER_ERRORS) as error:
            if one_of_many and isinstance(error, MovedError):
                self._say(OK, "this user can run scripts")
            else:
                self._say(ERROR, "cannot acquire a lease", str(translate(error, self._where)))
            return
        self._say(OK, "this user can acquire and release leases")
