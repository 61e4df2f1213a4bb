"""Leases inside the caller's own transaction: the lease's check and the caller's writes commit together.

The statements run on the caller's connection and in its transaction; nothing is committed, rolled back or retried here
(but to a savepoint of our own), and the driver's own errors (a deadlock, a lost connection) come out as they are, for
the caller's own handling.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ...core.claim import TAKEN
from ...core.lease import registry_of, state_of
from ...errors import AcquireTimeout, LeaseLost
from .requests import Result, Statement
from .table import Table

if TYPE_CHECKING:
    from ...core.lease import BaseLease
    from ...core.options import Spec
    from ...core.protocol import Steps
    from ...core.registry import Registry
    from .session import Session

_SAVEPOINT, _UNDO, _DONE = (
    Statement(f"{words} leasehold", {}) for words in ("SAVEPOINT", "ROLLBACK TO SAVEPOINT", "RELEASE SAVEPOINT")
)


class Aside(NamedTuple):
    """What is to be asked outside of the caller's transaction, by a connection of the store's own."""

    steps: Steps[Any]


Inside: TypeAlias = Generator[Statement | Aside, Any, int]
"""Yields statements for the caller's connection, and is sent their results. Returns the token."""


def session_of(core: Registry) -> Session:
    session: Session | None = getattr(core.driver, "session", None)
    if session is None:
        raise ValueError(f"in_transaction needs a SQL store, which {core.store.scheme}:// is not")
    return session


def holding(core: Registry, spec: Spec) -> Inside:
    """Takes the name for the length of a transaction, or AcquireTimeout: there is no waiting inside a transaction."""
    session = session_of(core)
    if (spec.shape, spec.limit) != ("lock", 1):
        raise ValueError("in_transaction takes plain locks only")
    return _hold(core, session, spec)


def _hold(core: Registry, session: Session, spec: Spec) -> Inside:
    """One that is refused must not lock the row: its holder could not renew until the caller's transaction ends. So
    read the row first, without a lock."""
    dialect, driver = session.dialect, core.driver
    key = dialect.key(session.namespace, spec.name)
    busy = f"{spec.name!r} cannot be acquired in this transaction: it is held, or others wait for it"
    if dialect.UNDOES:
        free = all(free for (free,) in (yield Statement(dialect.CAN_HOLD, key)).rows)
    else:
        # A read on the caller's own connection would fix its snapshot, older than what the last holder has committed.
        # A pool of the caller's may have no other connection: then the name is tried without a read.
        free = (yield Aside(Table(session).can_hold(spec.name))) if driver.source.spare else True  # type: ignore[attr-defined]
    if not free:
        raise AcquireTimeout(busy)
    if dialect.UNDOES:
        yield _SAVEPOINT
    token = dialect.taken((yield Statement(dialect.HOLD, {**key, "owner": core.owner, "kind": spec.kind})))
    if dialect.UNDOES:
        if not token:
            yield _UNDO
        yield _DONE
    elif not token:
        raise AcquireTimeout(f"{busy}. End this transaction now: its row lock keeps the holder from renewing")
    if not token:
        raise AcquireTimeout(busy)
    return token


def checking(lease: BaseLease) -> Inside:
    """Finds the lease's row, locked until the transaction ends, if it still is the lease's; else LeaseLost."""
    session = session_of(registry_of(lease))
    if state_of(lease).spec.shape != "lock":
        raise ValueError("in_transaction is for exclusive leases only")
    lease.check()
    return _check(lease, session)


def _check(lease: BaseLease, session: Session) -> Inside:
    dialect = session.dialect
    key = dialect.key(session.namespace, lease.name)
    values = {**key, "attempt": state_of(lease).claim.attempt, "token": lease.token}
    if (yield Statement(dialect.CHECK_HELD, values)).rows:
        return lease.token
    if dialect.SNAPSHOT and _is_older(lease, (yield Statement(dialect.SNAPSHOT, key))):
        raise ValueError(
            f"this transaction is older than the lease of {lease.name!r}, and does not see it: begin the transaction "
            "after the acquire, or use READ COMMITTED"
        )
    raise LeaseLost(lease.name, TAKEN)


def _is_older(lease: BaseLease, seen: Result) -> bool:
    """Whether what this transaction sees of the row is from before the lease, or from before its last renewals."""
    isolation, token, attempt, state = seen.rows[0]
    if isolation in ("read committed", "read uncommitted"):
        return False
    if token is None or token < lease.token:
        return True
    # By its own deadline it has not expired, though by what is seen here it has.
    return (token, attempt) == (lease.token, state_of(lease).claim.attempt) and state in (1, 2)
