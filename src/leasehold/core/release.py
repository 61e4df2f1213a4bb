"""How a lease is given back to the store: released by its holder, by the keeper, or because it was never used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import StoreError, StoreUnavailable
from . import timing
from .claim import RELEASED, Unsettled
from .effects import Effects, Run
from .log import DEBUG, WARNING, log
from .options import Spec
from .protocol import SECOND, Ask
from .registry import Registry
from .state import DONE, BaseState, LeaseState

# A lease that was held.


def release(core: Registry, state: LeaseState) -> Effects[bool]:
    """Release a lease at the store. False when it was no longer this lease's: lost, or released before."""
    caller = object()
    try:
        held = _begin(core, state, caller)
        if held is None:
            return False
        claim = state.claim
        core.giving.add(claim.attempt)
        steps = core.store.release(claim.name, claim.attempt, claim.token, claim.hint)
        given: bool = yield Run(steps, state.spec.timing.call_limit)
        _answered(core, state, given)
    except BaseException as error:  # also when whoever carries this out is interrupted or cancelled
        if state.released_by is caller:
            _failed(core, state, error)
        raise
    if held and not given:
        core.lose_after_release(state)
    return given and held


def _begin(core: Registry, state: LeaseState, caller: object) -> bool | None:
    """End the lease because its holder releases it. True: it was trusted until now. False: it was lost before.

    The release is then up to ``caller``. None: there is nothing, or nothing more, to release."""
    if core.now() >= state.deadline:
        end_block(core, state)  # as lost
    ours, held = core.owns(state), None
    with core.mutex:
        if state.end is None:
            state.end = RELEASED
        if state.released_by is None and ours:
            state.released_by = caller
            held = state.end == RELEASED  # also when another thread ended it, and gets here later
    core.leases.pop(state.claim.attempt, None)
    return held


def _answered(core: Registry, state: LeaseState, given: bool) -> None:
    """Note the store's answer to a release. ``given`` is False if the lease no longer held the name."""
    claim = state.claim
    core.giving.discard(claim.attempt)
    state.released_by = DONE
    if given:
        core.tell("released", claim.name, claim.token, ended=state)
    else:
        reason = "this lease no longer holds it"
        fields: dict[str, Any] = {"name": claim.name, "token": claim.token, "owner": core.owner, "reason": reason}
        level = WARNING if state.end == RELEASED else DEBUG  # the loss has been logged
        log(level, "%r was not released: %s", claim.name, reason, event="release_refused", **fields)


def _failed(core: Registry, state: LeaseState, error: BaseException) -> None:
    """The release failed or was interrupted: the keeper retries it.

    The event comes first: once the keeper has released the name, others report events about it."""
    claim = state.claim
    try:
        if isinstance(error, StoreError):
            core.tell("release_failed", claim.name, claim.token, str(error), kind=state.spec.kind)
    finally:
        core.leases.pop(claim.attempt, None)
        core.give_back_soon(claim.owed())
        core.giving.discard(claim.attempt)
        state.released_by = DONE


def end_block(core: Registry, state: LeaseState) -> None:
    """End the lease because its holder no longer uses it; as lost, if its deadline has passed."""
    now = core.now()
    if now < state.deadline:
        core.end(state, RELEASED)  # unless it has ended before
    elif (reason := state.lost_reason(now)) is not None:
        core.lose(state, reason)


def report_expiry(core: Registry, state: LeaseState) -> None:
    """If the lease's deadline has passed, and the timer has not ended it yet, end it as lost."""
    if state.end is None and core.now() >= state.deadline:
        end_block(core, state)


def leave_lost(core: Registry, state: LeaseState) -> None:
    """The block of a lease that was lost ends: have the keeper release it."""
    report_expiry(core, state)
    drop(core, state)


def leave_to_heir(core: Registry, state: LeaseState) -> None:
    """The block ends after ``transfer``: the lease stays in the store for whoever takes it over, or expires."""
    end_block(core, state)
    state.released_by = DONE


def offer(state: LeaseState) -> None:
    """From now on another process may take the lease over. It is renewed for that one, but no longer trusted."""
    state.offered = True
    state.wake()


# A lease that nobody releases any more.


def drop(core: Registry, state: LeaseState) -> None:
    """Have the keeper release the lease, unless somebody else does."""
    if state.released_by is None and core.owns(state):
        state.end = state.end or RELEASED
        core.leases.pop(state.claim.attempt, None)
        if not state.offered:
            core.give_back_soon(state.claim.owed())
        state.released_by = DONE


def drop_collected(core: Registry, state: BaseState) -> None:
    """The handle was collected: have the keeper release the lease, also if somebody began to and did not finish."""
    assert isinstance(state, LeaseState)
    if state.released_by is not None:
        state.released_by = None
        core.giving.discard(state.claim.attempt)
    drop(core, state)


# An attempt whose lease was never used.


def owed(core: Registry, ask: Ask) -> Unsettled:
    return Unsettled(ask.name, ask.attempt, core.now() + max(ask.ttl / SECOND, timing.WAITER_TTL))


def abandon(core: Registry, asks: Sequence[Ask], error: BaseException | None) -> Effects[None]:
    """Make sure that the attempts hold nothing. If the store does not answer, the keeper retries."""
    left = list(asks)
    try:
        while left and not isinstance(error, StoreUnavailable):
            yield Run(core.store.abandon(left[-1].name, left[-1].attempt), 1.0)
            left.pop()
    except StoreError:
        pass
    finally:  # also when whoever carries this out is interrupted
        for ask in left:
            core.give_back_soon(owed(core, ask))


def disown(core: Registry, state: LeaseState) -> Unsettled | None:
    """End a lease that was never used, so that ``min_hold`` does not count. The caller gives back what this returns.

    None in a forked child: the lease is the parent's."""
    if state.generation != core.generation:
        return None
    core.end(state, RELEASED)
    state.released_by = DONE
    return Unsettled(state.claim.name, state.claim.attempt, state.claim.until)


def discard(core: Registry, state: LeaseState) -> Effects[None]:
    """Give back a lease that was never used. If the store does not answer, the keeper retries."""
    owed = disown(core, state)
    if owed is None:
        return
    settled = False
    try:
        yield Run(core.store.abandon(owed.name, owed.attempt), 1.0)
        settled = True
    except StoreError:
        pass
    finally:
        if not settled:
            core.give_back_soon(owed)


# A lease that another one replaces: a writer that becomes a reader, a member with other data.


def begin_replacing(core: Registry, state: LeaseState, spec: Spec, caller: object) -> tuple[Spec, float]:
    """End a lease. Returns what to acquire in its place at once, ``spec`` as its heir, and how long that may take.

    The caller reports the outcome with ``after_replacing``."""
    core.need("heir")
    now = core.now()
    state.check(now)
    left = state.remaining(now)
    if not core.end(state, RELEASED):
        state.check(core.now())
    state.released_by = caller
    core.giving.add(state.claim.attempt)
    return spec._replace(heir=(state.claim.attempt, state.token), replaces=True), max(0.1, left)


def downgraded(core: Registry, state: LeaseState, caller: object) -> tuple[Spec, float]:
    """As ``begin_replacing``, for a writer that becomes a reader."""
    spec = state.spec
    if spec.shape != "rwlock" or spec.weight != spec.limit:
        raise ValueError("only a writer's lease of an rwlock can be downgraded")
    kind = "read" if spec.kind == "write" else spec.kind
    replaced = begin_replacing(core, state, spec._replace(kind=kind, weight=1), caller)
    core.tell("released", state.name, state.token, "downgraded", ended=state)
    return replaced


def after_replacing(core: Registry, state: LeaseState, caller: object, done: bool) -> None:
    """``done``: another lease has taken the place of this one. Otherwise give this one back, if it was ended."""
    if state.released_by is caller:
        if not done:
            core.give_back_soon(state.claim.owed())
        core.giving.discard(state.claim.attempt)
        state.released_by = DONE
