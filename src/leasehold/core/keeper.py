"""How leases are kept: renewed before they end, and given back when they were left; for threads and tasks alike."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ..errors import StoreError, StoreUnavailable
from . import timing
from .claim import CLOSED, INTERRUPTED, RELEASED, TAKEN
from .effects import RETRY, Effects, Listen, Run, Wait
from .lease import BaseLease
from .log import DEBUG, ERROR, log
from .protocol import BROKEN, RENEWED, SECOND, Bell, Renewal
from .registry import Registry

BATCH = 200
"""Renewals in one store operation."""
SPARE = 0.5
"""A batch may take so long, however short other leases are: the store may just be slow."""
TIDY_EVERY = 3600.0
TIDY_LIMIT = 0.5
"""How long tidying may take. A lease that comes meanwhile may be shorter than all that were there when it began."""


def keep(core: Registry, bell: Bell) -> Effects[None]:
    """The keeper: renew what is due, settle what is open, sleep until the next is due. Ends when ``closed``."""
    tidy_at = core.now()
    try:
        yield Listen("", None)  # for news of what is held
    except Exception as error:  # it learns of them when it renews
        log(ERROR, "the keeper cannot listen for wake-ups, and renews without them: %s", error, exc=error)
    while core.closed is None and not (core.dropped and not core.leases):
        try:
            yield from _renew_due(core)
            # The rest has time: if the store hangs over it, the next renewal must not wait for that.
            yield from _settle(core)
            if core.now() >= tidy_at:
                tidy_at = core.now() + TIDY_EVERY
                yield Run(core.store.tidy(), min(TIDY_LIMIT, _limit(core, _next_due(core))))
        except StoreError as error:
            log(DEBUG, "housekeeping has to wait: %s", error)
        except Exception as error:  # a keeper that dies would lose every lease
            log(ERROR, "the renewal loop failed; retrying: %s", error, exc=error)
            yield Wait(bell, RETRY)
        yield Wait(bell, _next_look(core))


def unexpected(error: Exception) -> StoreError:
    """An error that no driver should let through: its lease's record may be damaged."""
    wrapped = StoreError(f"unexpected {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _next_due(core: Registry) -> float:
    return min((lease._due for lease in core.held()), default=float("inf"))


def _limit(core: Registry, ends: float) -> float:
    return max(0.1, min(timing.CALL_LIMIT, ends - core.now()))


def _next_look(core: Registry) -> float | None:
    """Note when the keeper has to look again, and how long that is."""
    now = core.now()
    core.next_look = float("inf")  # until it is known: a lease that comes now is seen here, or wakes us
    # While leases come and go, look again when another such that comes now would be due: then none has to wake us.
    soonest, core.soonest = now + core.soonest, float("inf")
    due = min(_next_due(core), soonest)
    core.next_look = look = min(due, now + RETRY * 2) if core.unsettled else due
    return None if look == float("inf") else max(0.0, look - now)


def _renew_due(core: Registry) -> Effects[None]:
    now = core.now()
    urgent = set()
    while core.urgent:  # one by one: others may be added meanwhile
        urgent.add(core.urgent.pop())
    held = [lease for lease in core.held() if lease._deadline > now]
    if not any(lease._due <= now or lease._claim.attempt in urgent for lease in held):
        return
    due = []
    for lease in held:
        every = lease._spec.timing.renew_every
        if lease._due > now + every / 5 and lease._claim.attempt not in urgent:
            continue  # what is nearly due goes along, the rest has time
        if lease._may_renew(now):
            due.append(lease)
        elif lease._claim.attempt in urgent:
            yield from _probe(core, lease)
        else:
            lease._due = now + min(every / 4, 1.0)  # a beat may still come in time
    batches = [due[start : start + BATCH] for start in range(0, len(due), BATCH)]
    ends = [min(lease._deadline for lease in batch) for batch in batches]
    rest = {*held}.difference(due)
    ends.append(min((lease._deadline for lease in rest if lease._due != float("inf")), default=float("inf")))
    for place, batch in enumerate(batches):
        now = core.now()
        cadence = min(lease._spec.timing.renew_every for lease in batch)
        # How long the others can wait: what they live in may answer though what this batch lives in does not.
        spare = max(SPARE, (min(ends[:place] + ends[place + 1 :]) - now) / 2)
        yield from _renew_batch(core, batch, None, max(0.05, min(timing.CALL_LIMIT, cadence, ends[place] - now, spare)))


def _renew_batch(
    core: Registry, leases: list[BaseLease], ttl: float | None, limit: float, fail: bool = False, offered: bool = False
) -> Effects[None]:
    sent = core.now()
    terms = [lease.ttl if ttl is None else ttl for lease in leases]
    asks = [
        Renewal(lease.name, lease._claim.attempt, lease.token, int(term * SECOND), offered or lease._promised)
        for lease, term in zip(leases, terms, strict=True)
    ]
    try:
        outcomes = yield Run(core.store.renew(asks), limit)
    except Exception as error:
        if not isinstance(error, StoreError):
            error = unexpected(error)
        if len(leases) > 1 and not isinstance(error, StoreUnavailable):
            for lease in leases:  # one record that cannot be read must not cost the other leases their renewal
                yield from _renew_batch(core, [lease], ttl, limit)
            return
        core.renewal_failures += len(leases)
        for lease in leases:
            _renewal_failed(core, lease, error)
        if fail:
            raise error from error.__cause__
        return
    for lease, term, outcome in zip(leases, terms, outcomes, strict=True):
        if outcome == RENEWED:
            core.renewals += 1
            lease._renewed(sent, term, chosen=ttl is not None)
            core.tell("renewed", lease.name, lease.token, f"for {term:g} s")
        elif isinstance(outcome, StoreError):
            core.renewal_failures += 1
            _renewal_failed(core, lease, outcome)
            if fail:
                raise outcome
        else:
            core.renewal_failures += 1
            core.lose(lease, INTERRUPTED if outcome == BROKEN else TAKEN)


def _probe(core: Registry, lease: BaseLease) -> Effects[None]:
    """Ask whether a lease that is not to be renewed is still ours: a renewal that adds nothing to its term."""
    claim = lease._claim
    left = max(1, int((claim.until - core.now()) * SECOND))
    try:
        [outcome] = yield Run(core.store.renew([Renewal(claim.name, claim.attempt, claim.token, left)]), 1.0)
    except Exception:
        return
    if outcome != RENEWED and not isinstance(outcome, StoreError):
        core.lose(lease, INTERRUPTED if outcome == BROKEN else TAKEN)


def _renewal_failed(core: Registry, lease: BaseLease, error: StoreError) -> None:
    """Unknown, not lost: try again soon. A failed *cycle* is counted once per ``renew_every``."""
    now = core.now()
    timing = lease._spec.timing
    if now >= lease._cycle:
        lease._failures += 1
        lease._cycle = now + timing.renew_every
        core.tell("renewal_failed", lease.name, lease.token, str(error))
        if lease._failures >= timing.max_renew_failures:
            core.lose(lease, f"renewal failed in {lease._failures} cycles in a row: {error}")
    if timing.renew and lease._end is None:
        lease._due = now + min(timing.renew_every / 4, 1.0, max(0.02, (lease._deadline - now) / 4))
        core.reckon(lease)  # it may have been its holder who asked


def _settle(core: Registry, ends: float = float("inf"), last: bool = False) -> Effects[None]:
    """Give back what is owed, or try until ``ends``; what is not taken stays on the list until the store forgets it.
    ``last``: or until the store refuses it, since nobody tries for long enough that it is taken later.

    It also stays while it is being given back: the keeper may be stopped in the middle, and whoever closes must see it.
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
            return  # the rest has time, what is due has not


def _settle_many(core: Registry, ends: float) -> Effects[None]:
    """In batches, where the store can. When a batch fails, what is left is given back one by one."""
    give_back = getattr(core.store, "give_back", None)
    while give_back is not None and len(core.unsettled) > 1 and core.now() < min(ends, _next_due(core)):
        batch = list(islice(core.unsettled, BATCH))
        try:
            yield Run(give_back(batch), _limit(core, min(ends, _next_due(core), core.now() + core.cadence)))
        except Exception:  # one by one it shows which of them fails
            return
        for owed in batch:
            core.settled(owed)


# What its holder or its Locks asks for.


def renew(core: Registry, lease: BaseLease, ttl: float | None, offered: bool = False) -> Effects[None]:
    """Renew one lease because its holder asks for it, or is about to offer it. Raises LeaseLost or StoreUnavailable."""
    lease.check()
    ttl = lease.ttl if ttl is None else timing.seconds(ttl, "ttl")
    margin = lease._spec.timing.margin_of(ttl)
    if ttl <= margin:
        raise ValueError(f"ttl of {ttl:g} s is not longer than its margin of {margin:g} s")
    yield from _renew_batch(core, [lease], ttl, lease._spec.timing.call_limit, fail=True, offered=offered)
    lease.check()


def close(core: Registry, limit: float, bell: Bell) -> Effects[None]:
    """Mark what is held as lost and give it back; see waiters off; all within ``limit``."""
    ends = core.now() + limit
    for waiting in list(core.asking.values()):
        waiting.ring()
    yield from give_up(core, core.held(), CLOSED, ends, bell)
    while (core.asking or core.giving) and core.now() < ends:
        yield Wait(bell, 0.005)
    yield from give_up(core, core.held(), CLOSED, ends, bell)  # what was granted just then


def give_up(core: Registry, leases: Iterable[BaseLease], reason: str, ends: float, bell: Bell) -> Effects[None]:
    """End the leases, as lost or as released, and give them back; the keeper goes on with what can't be by then."""
    for lease in leases:
        try:
            if reason == RELEASED:
                core.end(lease, reason)
            else:
                core.lose(lease, reason)
        finally:  # also when somebody's log handler is interrupted: nobody would find it among what is held again
            with core.mutex:
                given = lease._given
                lease._given = given or True
            if not given and not lease._promised:  # what was offered stays for whoever takes it over, or runs out
                core.owe(lease._claim.owed())
    while core.unsettled and core.now() < ends:
        owing = len(core.unsettled)
        yield from _settle(core, ends, last=reason == CLOSED)
        if len(core.unsettled) >= owing:  # the store is away: no storm of calls until it is back
            yield Wait(bell, max(0.0, min(RETRY, ends - core.now())))
