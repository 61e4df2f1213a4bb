"""``leasehold doctor`` for ZooKeeper.

It asks each server for its state, and acquires and releases one test lease.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator

from kazoo.handlers.utils import create_tcp_connection

from ...core.protocol import SECOND, Ask, Grant
from ...core.timing import DEFAULT_TTL
from ...errors import StoreError, StoreNotReady
from ..common.findings import ERROR, OK, WARNING, Finding
from .access import authentication
from .sessions import SessionPool, ZooKeeperSession, length, longest_tick
from .store import ZooKeeperStore
from .threads import ZooKeeperClients, ZooKeeperThreads
from .url import ZooKeeperAddress, parse

LIMIT = 5.0
OLDEST = (3, 5)
SHORTEST, LONGEST = 1.0, 86_400.0
"""Session timeouts, in seconds, that are requested to see the server's bounds."""
SHORT_TTL = 2.0
"""Seconds. Shorter leases are rare, and the default tickTime of 2 s is short enough for them."""
HERE = "leasehold-doctor"


def doctor(url: str, namespace: str = "") -> list[Finding]:
    """Check each server that the URL names, the ensemble, its settings, and this client's permissions.

    Raises ValueError for a bad URL; any other problem is a finding."""
    address = parse(url)
    found = [finding for each in address.hosts.split(",") for finding in _server(each, address)]
    clients = ZooKeeperClients(address)
    try:
        found += _ensemble(address, found)
        found += _tick(address)
        found += _sessions(clients.pool)
        store = ZooKeeperStore(clients.pool, clients.stakes, namespace)
        found += _lease(clients, store)
        found += authentication(address, store.tree.space)
    finally:
        clients.close()
    return found


def _server(where: str, address: ZooKeeperAddress) -> Iterator[Finding]:
    """The state of one server, if its ``4lw.commands.whitelist`` allows the question."""
    try:
        said = _word(where, address, b"srvr")
    except OSError as error:
        yield Finding(ERROR, where, f"does not answer: {error}", "check that it runs and can be reached from here")
        return
    if "not in the whitelist" in said or not said:
        yield Finding(OK, where, "answers, but does not report its state (srvr is not in its 4lw.commands.whitelist)")
        return
    if "not currently serving" in said:
        yield Finding(
            ERROR, where, "has no quorum", "check that a majority of the servers runs, and that they reach each other"
        )
        return
    fields = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    version = fields.get("Zookeeper version", "?").partition("-")[0]
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < OLDEST:
        yield Finding(ERROR, where, f"ZooKeeper {version}", "upgrade: leasehold needs ZooKeeper 3.5 or later")
    else:
        yield Finding(OK, where, f"ZooKeeper {version}, {fields.get('Mode', '?')}")


def _ensemble(address: ZooKeeperAddress, found: list[Finding]) -> Iterator[Finding]:
    servers = len(address.hosts.split(","))
    if any("standalone" in finding.message for finding in found):
        advice = "no lease can be acquired or renewed while it is down: three servers tolerate the loss of one"
        yield Finding(WARNING, "ensemble", "a single server", advice)
    elif servers == 1:
        advice = "name all servers, h1:p1,h2:p2,h3:p3, so that the client survives the loss of this one"
        yield Finding(WARNING, "ensemble", "the URL names one server", advice)


def _tick(address: ZooKeeperAddress) -> Iterator[Finding]:
    """Whether sessions can outlive leases because of a long tickTime, if a server may be asked for it (``conf``)."""
    for each in address.hosts.split(","):
        try:
            said = _word(each, address, b"conf")
        except OSError:
            continue  # reported before
        found = re.search(r"^tickTime=([0-9]{1,9})$", said, re.MULTILINE)
        if found is None:
            message = "does not report its tickTime (conf is not in its 4lw.commands.whitelist)"
            yield Finding(
                OK, each, f"{message}; it must be {longest_tick(DEFAULT_TTL):.1f} s or less for the default ttl"
            )
            continue
        tick = int(found[1]) / 1000
        shortest = max(0.0, (tick / 2 - 0.95) / 0.045)
        if tick > longest_tick(DEFAULT_TTL):
            message = f"tickTime of {tick:g} s: a lease with a ttl below {shortest:.3g} s may have two holders"
            advice = f"set tickTime to 2000, or use a ttl of {shortest:.3g} s or more everywhere"
            yield Finding(ERROR, each, message, advice)
        elif tick > longest_tick(SHORT_TTL):
            message = f"tickTime of {tick:g} s: a lease with a ttl below {shortest:.3g} s may have two holders"
            yield Finding(WARNING, each, message, "set tickTime to 2000 if you use shorter leases")


def _sessions(pool: SessionPool) -> Iterator[Finding]:
    """The session timeouts that the servers allow."""
    agreed = []
    for wanted in (SHORTEST, LONGEST):
        session = ZooKeeperSession(pool.address, wanted, pool.observer)
        pool.sessions.append(session)
        ends = time.monotonic() + LIMIT
        while not session.up and time.monotonic() < ends:
            time.sleep(0.01)
        if session.agreed is None:
            return  # the test lease, which is next, says why
        agreed.append(session.agreed)
    shortest, longest = agreed
    fits = (longest - 1.0) / 1.15
    if length(DEFAULT_TTL) > longest:
        advice = f"raise maxSessionTimeout to {length(DEFAULT_TTL):g} s or more, or use shorter leases"
        message = f"last {shortest:g} to {longest:g} s: the longest ttl is {fits:.3g} s, below the default"
        yield Finding(WARNING, "sessions", message, advice)
    else:
        yield Finding(OK, "sessions", f"last {shortest:g} to {longest:g} s: the longest ttl is {fits:.3g} s")


def _lease(clients: ZooKeeperClients, store: ZooKeeperStore) -> Iterator[Finding]:
    """Acquire and release a test lease, which checks quorum, credentials and ACLs."""
    driver = ZooKeeperThreads(clients)
    ask = Ask(HERE, os.urandom(16).hex(), HERE, HERE, None, SECOND)
    begun = time.monotonic()
    try:
        reply = driver.run(store.acquire(ask), LIMIT)
        if isinstance(reply, Grant):
            driver.run(store.release(HERE, ask.attempt, reply.token, None), LIMIT)
        yield Finding(OK, "lease", f"acquired and released in {(time.monotonic() - begun) * 1000:.0f} ms")
    except StoreNotReady as error:
        yield Finding(ERROR, "lease", str(error), "see docs/stores/zookeeper.md for what leasehold needs")
    except StoreError as error:
        yield Finding(
            ERROR, "lease", str(error), "check that a majority of the servers runs and can be reached from here"
        )


def _word(where: str, address: ZooKeeperAddress, word: bytes) -> str:
    """The answer to one of ZooKeeper's four-letter words."""
    host, _, port = where.rpartition(":")
    tls = {name: value for name, value in address.options.items() if name not in ("auth_data", "default_acl")}
    tls.pop("randomize_hosts", None)
    connection = create_tcp_connection(socket, (host.strip("[]"), int(port)), timeout=LIMIT, hostname=host, **tls)
    try:
        connection.settimeout(LIMIT)
        connection.sendall(word)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts).decode(errors="replace")
    finally:
        connection.close()
