"""``leasehold doctor`` for etcd.

It only reads, except for one test lease, which it acquires and releases.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ...core.protocol import SECOND, Ask, Grant
from ...errors import StoreError
from ..common.findings import ERROR, OK, WARNING, Finding
from . import wire
from .endpoints import Endpoints
from .errors import DRIVER_ERRORS, GrpcError, translate
from .store import EtcdStore
from .threads import EtcdThreads, ThreadTransport
from .url import EtcdAddress, parse
from .wire import first, read

LIMIT = 5.0
QUOTA = 2 * 1024**3
"""etcd's default quota. The API does not report the configured one."""
_FAULTS = (
    ("can revoke live leases (etcd#15247)", {(3, 4): 31, (3, 5): 13}, "3.5.13, 3.4.31"),
    (
        "can answer that it has renewed a lease that it is revoking (etcd#20547)",
        {(3, 4): 38, (3, 5): 23, (3, 6): 5},
        "3.6.5, 3.5.23, 3.4.38",
    ),
    (
        "can crash when a client cancels a call during a stall (etcd#14110, etcd#14891)",
        {(3, 4): 23, (3, 5): 7},
        "3.5.7, 3.4.23",
    ),
)
"""Faults of etcd: what happens, by minor version the first patch without the fault, and what to upgrade to."""
_ALARMS = {
    1: ("is full (NOSPACE)", "no lease can be acquired: compact, defragment, then run `etcdctl alarm disarm`"),
    2: ("reports corrupt data", "replace the member that differs: see etcd's documentation on corruption"),
}
_LOG_IN = "give a user and password: etcd://user:password@host"
_TURN_ON = "create root and a user for leasehold (docs/stores/etcd.md#permissions), then run `etcdctl auth enable`"
_TURN_ON_OR_LEAVE = "remove user and password from the URL, or run `etcdctl auth enable`"


def doctor(url: str, namespace: str = "") -> list[Finding]:
    """Check each member that the URL names, the cluster, and this user's permissions.

    Raises ValueError for a bad URL; any other problem is a finding."""
    address = parse(url)
    found: list[Finding] = []
    leaders = set()
    for host in address.hosts:
        leaders.add(_member(address._replace(hosts=(host,)), found))
    found += _authentication(address)
    if not leaders - {None}:
        return found
    found += _cluster(address, leaders - {None, 0})
    found += _lease(address, namespace)
    return found


def _ask(address: EtcdAddress, call: wire.EtcdCall) -> wire.Fields:
    """The answer to one call."""
    transport = ThreadTransport(Endpoints(address))
    try:
        return read(transport.send(call, LIMIT)[0])
    finally:
        transport.close()


def _member(address: EtcdAddress, found: list[Finding]) -> int | None:
    """Check one member. Returns its leader; 0: it has none, or this user may not read it; None: no answer."""

    def say(level: str, message: str, advice: str = "") -> None:
        found.append(Finding(level, address.where, message, advice))

    try:
        status = _ask(address, wire.EtcdCall(wire.STATUS, (b"",)))
    except DRIVER_ERRORS as error:
        if _forbidden(error):
            found.append(_hidden(address, "its status"))
            return 0
        message = "refuses the call" if isinstance(error, GrpcError) else "cannot be reached"
        say(ERROR, message, str(translate(error, address.where)))
        return None
    version = first(status, 2, b"").decode()
    *minor, patch = (int(part) if part.isdigit() else 0 for part in version.partition("-")[0].split("."))
    if tuple(minor) < (3, 4):
        say(ERROR, f"etcd {version}", "upgrade: leasehold needs etcd 3.4 or later")
    faults = [(what, mended) for what, since, mended in _FAULTS if patch < since.get((minor[0], minor[1]), 0)]
    for what, mended in faults:
        say(WARNING, f"etcd {version} {what}", f"upgrade to {mended} or later")
    if not faults and tuple(minor) >= (3, 4):
        say(OK, f"etcd {version}")
    size = first(status, 3)
    if size > 0.8 * QUOTA:
        message = f"the database has {size / 2**20:.0f} MiB"
        say(WARNING, message, "compact and defragment it: etcd's default quota is 2 GiB")
    leader = first(status, 4)
    if not leader:
        say(ERROR, "has no leader", "check that a majority of the members runs, and that they reach each other")
    return int(leader)


def _authentication(address: EtcdAddress) -> Iterator[Finding]:
    """Whether authentication is on, and who this client is. Nothing if no member answers, which is reported before."""
    try:
        on = _asks_who_we_are(address)
    except DRIVER_ERRORS:
        return
    if on and address.user:
        yield Finding(OK, address.where, f"authentication is on; this client logs in as user {address.user}")
    elif on and address.cert:
        yield Finding(OK, address.where, "authentication is on; this client has a certificate and no user")
    elif on:
        yield Finding(ERROR, address.where, "authentication is on; this client has no user", _LOG_IN)
    elif address.user:
        yield Finding(ERROR, address.where, "authentication is off: no user can log in", _TURN_ON_OR_LEAVE)
    elif address.cert:
        message = "authentication is off; this client has a certificate"
        yield Finding(OK, address.where, f"{message}, which protects etcd if it runs with --client-cert-auth")
    else:
        message = "authentication is off: every client that reaches etcd can acquire, break and delete any lease"
        yield Finding(WARNING, address.where, message, _TURN_ON)


def _asks_who_we_are(address: EtcdAddress) -> bool:
    """Whether authentication is on; a refusal tells that too. etcd 3.4 has no such request: try an empty login."""
    try:
        return bool(first(_ask(address, wire.EtcdCall(wire.AUTH_STATUS, (b"",))), 2))
    except GrpcError as error:
        if not error.unimplemented:
            return _told_by(error)
    if not address.user:  # else the login succeeded
        try:
            _ask(address, wire.authenticate("", ""))
        except GrpcError as error:
            return _told_by(error)
    return True


def _told_by(error: GrpcError) -> bool:
    if error.is_about_users:
        return not error.has_no_users
    raise error


def _cluster(address: EtcdAddress, leaders: set[int | None]) -> Iterator[Finding]:
    try:
        found = _ask(address, wire.EtcdCall(wire.MEMBERS, (b"",))).get(2, [])
        voters = sum(not first(read(member), 5) for member in found)  # the others are learners
        if voters % 2 == 0:
            advice = "add one: an even number tolerates no more failures than one less"
            yield Finding(WARNING, address.where, f"{voters} voting members", advice)
        if len(address.hosts) < voters:
            few = f"the URL names {len(address.hosts)} of {voters} members"
            yield Finding(WARNING, address.where, few, "name all members, so that the client survives the loss of one")
    except DRIVER_ERRORS as error:
        yield _unseen(address, "the members", error)
    try:
        alarms = _ask(address, wire.EtcdCall(wire.ALARM, (b"",))).get(2, [])
        for alarm in alarms:
            what, how = _ALARMS.get(first(read(alarm), 2), ("has an alarm", "run `etcdctl alarm list`"))
            yield Finding(ERROR, address.where, what, how)
        if not alarms:
            yield Finding(OK, address.where, "no alarms")
    except DRIVER_ERRORS as error:
        yield _unseen(address, "the alarms", error)
    if len(leaders) > 1:
        advice = "check that the hosts in the URL are one cluster, and run doctor again: an election may be in progress"
        yield Finding(ERROR, address.where, "the members name different leaders", advice)


def _forbidden(error: BaseException) -> bool:
    return isinstance(error, GrpcError) and error.forbidden


def _hidden(address: EtcdAddress, what: str) -> Finding:
    return Finding(WARNING, address.where, f"this user may not see {what}", "run doctor as root to see more")


def _unseen(address: EtcdAddress, what: str, error: BaseException) -> Finding:
    if _forbidden(error):
        return _hidden(address, what)
    return Finding(WARNING, address.where, f"{what} cannot be seen", str(translate(error, address.where)))


def _lease(address: EtcdAddress, namespace: str) -> Iterator[Finding]:
    """Acquire and release a test lease."""
    store = EtcdStore(namespace)
    driver = EtcdThreads(store, ThreadTransport(Endpoints(address)), address.where)
    name, attempt = "leasehold-doctor", os.urandom(16).hex()
    try:
        shortest = driver.run(store.session.leases.shortest(), LIMIT)
        yield Finding(OK, address.where, f"the shortest possible ttl is {shortest} s")
        ask = Ask(name, attempt, "doctor", "doctor", None, shortest * SECOND)
        reply = driver.run(store.acquire(ask), LIMIT)
        if isinstance(reply, Grant):
            driver.run(store.release(name, attempt, reply.token, reply.hint), LIMIT)
        yield Finding(OK, address.where, "this user can acquire and release leases")
    except StoreError as error:
        yield Finding(ERROR, address.where, "cannot acquire a lease", str(error))
    finally:
        driver.close()
