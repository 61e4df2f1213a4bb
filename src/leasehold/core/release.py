"""How a lease is given back, whether it was held, promised to a caller who is gone, or never used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import StoreError, StoreUnavailable
from . import timing
from .claim import RELEASED, Unsettled
from .effects import Effects, Run
from .lease import BaseLease
from .log import WARNING, log
from .options import Spec
from .protocol import SECOND, Ask
from .registry import Registry


def owed(core: Registry, ask: Ask) -> Unsettled:
    return Unsettled(ask.name, ask.attempt, core.now() + max(ask.ttl / SECOND, timing.WAITER_TTL))


def abandon(core: Registry, asks: Sequence[Ask], error: BaseException | None) -> Effects[None]:
    """See to it that the attempts hold nothing. If the store does not answer, the keeper goes on trying."""
    left = list(asks)
    try:
        while left and not isinstance(error, StoreUnavailable):
            yield Run(core.store.abandon(left[-1].name, left[-1].attempt), 1.0)
            left.pop()
    except StoreError:
        pass
    finally:  # also when whoever carries this out is interrupted
        for ask in left:
            core.settle(owed(core, ask))


def release(core: Registry, lease: BaseLease) -> Effects[bool]:
    """Release a lease at the store. False when it was no longer this lease's: lost, or released before."""
    giver = object()
    try:
        held = lease._finish(giver)
        if held is None:
            return False
        claim = lease._claim
        core.giving.add(claim.attempt)
        steps = core.store.release(claim.name, claim.attempt, claim.token, claim.hint)
        given: bool = yield Run(steps, lease._spec.timing.call_limit)
        _answered(core, lease, given)
    except BaseException as error:  # also when whoever carries this out is interrupted or cancelled
        if lease._given is giver:
            _failed(core, lease, error)
        raise
    if held and not given:
        core.belie(lease)
    return given and held


def _answered(core: Registry, lease: BaseLease, given: bool) -> None:
    """The store has answered the release of a lease that its holder has ended: False, it was another's already."""
    claim = lease._claim
    core.giving.discard(claim.attempt)
    lease._given = True
    if given:
        core.tell("released", claim.name, claim.token)
    else:
        reason = "this lease no longer holds it"
        fields: dict[str, Any] = {"name": claim.name, "token": claim.token, "owner": core.owner, "reason": reason}
        log(WARNING, "%r was not released: %s", claim.name, reason, event="release_refused", **fields)


def _failed(core: Registry, lease: BaseLease, error: BaseException) -> None:
    """The release has failed, or was left in the middle: the keeper goes on with it.

    That is told before: once the keeper has given it back, others tell of the name."""
    claim = lease._claim
    try:
        if isinstance(error, StoreError):
            core.tell("release_failed", claim.name, claim.token, str(error))
    finally:
        core.leases.pop(claim.attempt, None)
        core.settle(claim.owed())
        core.giving.discard(claim.attempt)
        lease._given = True


def disown(core: Registry, lease: BaseLease) -> Unsettled:
    """End a lease that was never used, so that min_hold does not count; the caller sees that it is given back."""
    core.end(lease, RELEASED)
    lease._given = True
    return Unsettled(lease._claim.name, lease._claim.attempt, lease._claim.until)


def discard(core: Registry, lease: BaseLease) -> Effects[None]:
    """Give back a lease that was never used. If the store does not answer, the keeper goes on trying."""
    owed = disown(core, lease)
    settled = False
    try:
        yield Run(core.store.abandon(owed.name, owed.attempt), 1.0)
        settled = True
    except StoreError:
        pass
    finally:
        if not settled:
            core.settle(owed)


def downgraded(core: Registry, lease: BaseLease, giver: object) -> tuple[Spec, float]:
    """End a writer's lease: what to acquire in its place, at once, and how long that may take.

    The caller says how that went: ``after_downgrade``."""
    spec = lease._spec
    if spec.shape != "rwlock" or spec.weight != spec.limit:
        raise ValueError("only a writer's lease of an rwlock can be downgraded")
    core.need("heir")
    lease.check()
    left = lease.remaining
    if not core.end(lease, RELEASED):
        lease.check()
    lease._given = giver
    core.giving.add(lease._claim.attempt)
    core.tell("released", lease.name, lease.token, "downgraded")
    kind = "read" if spec.kind == "write" else spec.kind
    return spec._replace(kind=kind, weight=1, heir=(lease._claim.attempt, lease.token)), max(0.1, left)


def after_downgrade(core: Registry, lease: BaseLease, giver: object, done: bool) -> None:
    """Without a reader in its place the writer's lease is to be given back, if it was ended for that."""
    if lease._given is giver:
        if not done:
            core.settle(lease._claim.owed())
        core.giving.discard(lease._claim.attempt)
        lease._given = True
