"""The keeper: renews leases, keeps places in queues, gives back what nobody releases. For threads and tasks alike."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ..errors import StoreError, StoreUnavailable
from . import timing
from .claim import BY_OPERATOR, CLOSED, RELEASED, RENEWALS_FAILED, TAKEN
from .effects import RETRY, Effects, Listen, Run, Wait
from .log import DEBUG, ERROR, log
from .places import keep_places, next_check
from .protocol import BROKEN, RENEWED, SECOND, Bell, Renewal
from .registry import Registry
from .state import DONE, NEVER, LeaseState

MOST_AT_ONCE = 200
"""Renewals, or leases to give back, in one store operation."""
SPARE = 0.5
"""How long a batch of renewals may take at least, however soon another one is due: the store may just be slow."""
TIDY_EVERY = 3600.0
TIDY_LIMIT = 0.5
"""How long tidying may take. A lease that comes meanwhile may be shorter than all that were there when it began."""


def keep(core: Registry, bell: Bell) -> Effects[None]:
    """Renew what is due, keep places in queues, give back what is owed, sleep until the next of these is due. Ends when
    ``closed``."""
    tidy_at = core.now()
    try:
        yield Listen("", None)  # for wake-ups about held leases
    except Exception as error:  # without wake-ups, the renewals find out
        log(ERROR, "the keeper cannot listen for wake-ups, and renews without them: %s", error, exc=error)
    while core.closed is None and not (core.dropped and not core.leases):
        try:
            yield from _renew_due(core)
            yield from keep_places(core)
            # The rest is limited by the next renewal, which must not wait for a store that hangs.
            yield from _settle(core)
            if core.now() >= tidy_at:
                tidy_at = core.now() + TIDY_EVERY
                yield Run(core.store.tidy(), min(TIDY_LIMIT, _limit(core, _next_due(core))))
        except StoreError as error:
            log(DEBUG, "housekeeping has to wait: %s", error)
        except Exception as error:  # a keeper that dies would lose every lease
            log(ERROR, "the keeper failed; retrying: %s", error, exc=error)
            yield Wait(bell, RETRY)
        yield Wait(bell, _next_look(core))


def unexpected(error: Exception) -> StoreError:
    """Wrap an error that no driver should let through. The lease's record may be damaged."""
    wrapped = StoreError(f"unexpected {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _next_due(core: Registry) -> float:
    return min((state.due for state in core.held()), default=NEVER)


def _limit(core: Registry, ends: float) -> float:
    """The limit of a call that has to be over by ``ends``."""
    return max(0.1, min(timing.CALL_LIMIT, ends - core.now()))


def _next_look(core: Registry) -> float | None:
    """Write down until when the keeper sleeps; return how long that is."""
    now = core.now()
    core.next_look = NEVER  # until it is known: a lease that comes now is found below, or wakes the keeper
    # If another lease as short as the last ones comes now, it is due at ``soonest``: it need not wake the keeper.
    soonest, core.soonest = now + core.soonest, NEVER
    due = min(_next_due(core), next_check(core), soonest)
    core.next_look = look = min(due, now + RETRY * 2) if core.unsettled else due
    return None if look == NEVER else max(0.0, look - now)


def _renew_due(core: Registry) -> Effects[None]:
    now = core.now()
    urgent = set()
    while core.urgent:  # one by one: other threads add some meanwhile
        urgent.add(core.urgent.pop())
    held = [state for state in core.held() if state.deadline > now]
    if not any(state.due <= now or state.claim.attempt in urgent for state in held):
        return
    due = []
    for state in held:
        every = state.spec.timing.renew_every
        if state.due > now + every / 5 and state.claim.attempt not in urgent:
            continue  # what is due soon is renewed in the same batch
        if state.may_renew(now):
            due.append(state)
        elif state.claim.attempt in urgent:
            yield from _probe(core, state)
        else:
            state.due = now + min(every / 4, 1.0)  # a beat may still come in time
    batches = [due[start : start + MOST_AT_ONCE] for start in range(0, len(due), MOST_AT_ONCE)]
    ends = [min(state.deadline for state in batch) for batch in batches]
    rest = {*held}.difference(due)
    ends.append(min((state.deadline for state in rest if state.due != NEVER), default=NEVER))
    for number, batch in enumerate(batches):
        now = core.now()
        cadence = min(state.spec.timing.renew_every for state in batch)
        # Leave time for the other batches: they may be on a part of the store that answers when this one's does not.
        spare = max(SPARE, (min(ends[:number] + ends[number + 1 :]) - now) / 2)
        yield from _renew_batch(
            core, batch, None, max(0.05, min(timing.CALL_LIMIT, cadence, ends[number] - now, spare))
        )


def _renew_batch(
    core: Registry, states: list[LeaseState], ttl: float | None, limit: float, fail: bool = False, offered: bool = False
) -> Effects[None]:
    """Renew in one store operation, for ``ttl`` seconds (None: each for its own). ``fail``: raise what goes wrong."""
    sent = core.now()
    terms = [state.ttl if ttl is None else ttl for state in states]
    asks = [
        Renewal(state.name, state.claim.attempt, state.token, int(term * SECOND), offered or state.offered)
        for state, term in zip(states, terms, strict=True)
    ]
    try:
        outcomes = yield Run(core.store.renew(asks), limit)
    except Exception as error:
        if not isinstance(error, StoreError):
            error = unexpected(error)
        if len(states) > 1 and not isinstance(error, StoreUnavailable):
            for state in states:  # one damaged record must not cost the other leases their renewal
                yield from _renew_batch(core, [state], ttl, limit)
            return
        core.renewal_failures += len(states)
        for state in states:
            _renewal_failed(core, state, error)
        if fail:
            raise error from error.__cause__
        return
    for state, term, outcome in zip(states, terms, outcomes, strict=True):
        if outcome == RENEWED:
            core.renewals += 1
            deadline = None if state.first_term else state.deadline
            core.renewed(state, sent, term, chosen=ttl is not None)
            core.tell("renewed", state.name, state.token, f"for {term:g} s", kind=state.spec.kind, deadline=deadline)
        elif isinstance(outcome, StoreError):
            core.renewal_failures += 1
            _renewal_failed(core, state, outcome)
            if fail:
                raise outcome
        else:
            core.renewal_failures += 1
            core.lose(state, BY_OPERATOR if outcome == BROKEN else TAKEN)


def _probe(core: Registry, state: LeaseState) -> Effects[None]:
    """Check that a lease that is not renewed still holds the name, with a renewal that adds nothing to its term."""
    claim = state.claim
    left = max(1, int((claim.until - core.now()) * SECOND))
    try:
        [outcome] = yield Run(core.store.renew([Renewal(claim.name, claim.attempt, claim.token, left)]), 1.0)
    except Exception:
        return
    if outcome != RENEWED and not isinstance(outcome, StoreError):
        core.lose(state, BY_OPERATOR if outcome == BROKEN else TAKEN)


def _renewal_failed(core: Registry, state: LeaseState, error: StoreError) -> None:
    """The outcome is unknown, not lost: retry soon. A failed *cycle* is counted once per ``renew_every``."""
    now = core.now()
    timing = state.spec.timing
    if now >= state.cycle_ends:
        state.failures += 1
        state.cycle_ends = now + timing.renew_every
        core.tell("renewal_failed", state.name, state.token, str(error), kind=state.spec.kind)
        if state.failures >= timing.max_renew_failures:
            core.lose(state, f"{RENEWALS_FAILED} {state.failures} cycles in a row: {error}")
    if timing.renew and state.end is None:
        state.due = now + min(timing.renew_every / 4, 1.0, max(0.02, (state.deadline - now) / 4))
        core.schedule(state)  # it may have been the holder who renewed, not the keeper


def _settle(core: Registry, ends: float = NEVER, last: bool = False) -> Effects[None]:
    """Give back what is owed, until ``ends``. What fails stays on the list until the store forgets it by itself.
    ``last``: or until the store refuses it, because nobody retries later.

    An entry stays on the list while it is being given back: if the keeper is stopped in the middle, ``close`` sees it.
    """
    yield from _settle_many(core, ends)
    for owed in list(core.unsettled):
        try:
            if owed.token is None:
                steps = core.store.abandon(owed.name, owed.attempt)
            else:
                steps = core.store.release(owed.name, owed.attempt, owed.token, None)
            yield Run(steps, _limit(core, min(ends, _next_due(core), core.now() + core.cadence)))
        except Exception as error:
            in_vain = last and not isinstance(error, StoreUnavailable)
            if in_vain or not isinstance(error, StoreError):
                then = "it stays until its ttl is over" if in_vain else "retrying"
                log(ERROR, "releasing %r failed; %s: %s", owed.name, then, error, exc=error)
            if core.now() < owed.until and not in_vain:
                core.unsettled.append(owed)  # again, behind the others
        core.settled(owed)
        if core.now() >= min(ends, _next_due(core)):
            return  # renewals go first


def _settle_many(core: Registry, ends: float) -> Effects[None]:
    """Give back in batches, if the store can. When a batch fails, ``_settle`` gives back one by one."""
    while len(core.unsettled) > 1 and core.now() < min(ends, _next_due(core)):
        batch = list(islice(core.unsettled, MOST_AT_ONCE))
        try:
            limit = _limit(core, min(ends, _next_due(core), core.now() + core.cadence))
            if not (yield Run(core.store.give_back(batch), limit)):
                return
        except Exception:  # one by one it shows which of them fails
            return
        for owed in batch:
            core.settled(owed)


# What a holder, or a ``Locks``, calls.


def renew(core: Registry, state: LeaseState, ttl: timing.Duration | None, offered: bool = False) -> Effects[None]:
    """Renew one lease because its holder calls ``renew``, or offers it. Raises LeaseLost or StoreUnavailable."""
    state.check(core.now())
    ttl = state.ttl if ttl is None else timing.seconds(ttl, "ttl")
    margin = state.spec.timing.margin_of(ttl)
    if ttl <= margin:
        raise ValueError(f"ttl of {ttl:g} s is not longer than its margin of {margin:g} s")
    yield from _renew_batch(core, [state], ttl, state.spec.timing.call_limit, fail=True, offered=offered)
    state.check(core.now())


def close(core: Registry, limit: float, bell: Bell) -> Effects[None]:
    """Lose and give back what is held, leave the groups, end the waits, all within ``limit``."""
    ends = core.now() + limit
    for waiting in list(core.asking.values()):
        waiting.ring()
    held = core.held()
    for state in held:
        if state.claim.attempt in core.standing:
            core.end(state, RELEASED)  # whoever leaves loses nothing
    yield from end_all(core, held, CLOSED, ends, bell)
    while (core.asking or core.giving) and core.now() < ends:
        yield Wait(bell, 0.005)
    yield from end_all(core, core.held(), CLOSED, ends, bell)  # what was granted just then


def end_all(core: Registry, states: Iterable[LeaseState], reason: str, ends: float, bell: Bell) -> Effects[None]:
    """End the leases, as lost or as released, and give them back until ``ends``. The keeper retries the rest."""
    for state in states:
        try:
            if reason == RELEASED:
                core.end(state, reason)
            else:
                core.lose(state, reason)
        finally:  # also when a log handler is interrupted: the lease is no longer among the held ones
            with core.mutex:
                releasing = state.released_by
                state.released_by = releasing or DONE
            if releasing is None and not state.offered:  # an offered one stays for whoever takes it over, or expires
                core.owe(state.claim.owed())
    while core.unsettled and core.now() < ends:
        owing = len(core.unsettled)
        yield from _settle(core, ends, last=reason == CLOSED)
        if len(core.unsettled) >= owing:  # the store is away: no storm of calls until it is back
            yield Wait(bell, max(0.0, min(RETRY, ends - core.now())))
