"""How a lease is taken, kept and given back: written once, for threads and for tasks.

Everything here is a generator of *effects*: it yields a :class:`Run` (a store operation), a :class:`Wait` or a
:class:`Listen`, and is sent the result. The shells in ``lock.py`` and ``aio.py`` carry them out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from . import policy
from .core import Core
from .errors import AcquireTimeout, StoreError, StoreNotReady, StoreUnavailable
from .lease import CLOSED, INTERRUPTED, TAKEN, BaseLease, Claim, Unsettled
from .log import DEBUG, ERROR, WARNING, log
from .model import LeaseInfo, LockMetrics
from .protocol import BROKEN, RENEWED, SECOND, Ask, Bell, Busy, Grant, Holding, Mismatch, Renewal, Steps
from .spec import Spec
from .typed import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")
Effects: TypeAlias = Generator["Run | Wait | Listen", Any, T]

BATCH = 200
"""Renewals in one store operation."""
PAGE = 500
"""Records in one page of a listing."""
TIDY_EVERY = 3600.0
RETRY = 0.25
"""How soon a call that failed is tried again; growing from here."""


class Run(NamedTuple):
    """Run a store operation within so many seconds; the result is its result."""

    steps: Steps[Any]
    limit: float


class Wait(NamedTuple):
    """Sleep until the bell rings, at most so many seconds (None: however long)."""

    bell: Bell
    seconds: float | None


class Listen(NamedTuple):
    """See that rings for this attempt arrive. The result is whether they will."""

    attempt: str
    busy: Busy | None


class WrongShape(ValueError):
    """The name is in use as another kind of lock."""


class Taken(NamedTuple):
    claim: Claim
    sent: float
    trusted: float | None = None
    """For how long after ``sent``, when that is not the whole ttl: a first term."""


def acquire(core: Core, spec: Spec, ask: Ask, timeout: float | None, bell: Bell) -> Effects[Taken]:
    """Ask until the lease is granted; wait in between. Raises AcquireTimeout, StoreUnavailable.

    However it ends other than by returning, the caller must then abandon the attempt.
    """
    timing = spec.timing
    started = core.now()
    ends = None if timeout is None else started + timeout
    pauses = policy.pauses(spec.poll, spec.backoff)
    failing_since: float | None = None
    retry = RETRY
    listened = asked = False
    try:
        while True:
            core.check_open()
            sent = core.now()
            limit = timing.call_limit
            if ends is not None and ask.queue:
                limit = min(limit, max(0.5, ends - sent))
            try:
                reply = yield Run(core.store.acquire(ask), limit)
            except StoreNotReady as error:
                error.nothing_asked = not asked
                raise
            except StoreUnavailable as error:
                asked = True
                core.unavailable += 1
                # Whether it was granted is not known. The same attempt asked again will find out.
                now = core.now()
                if failing_since is None:
                    failing_since = sent
                    core.tell("unavailable", ask.name, None, str(error))
                out_of_time = now >= ends if ends is not None else now - failing_since >= policy.UNAVAILABLE_LIMIT
                if out_of_time or not ask.queue:
                    raise
                yield Wait(bell, retry if ends is None else min(retry, ends - now))
                retry = min(retry * 2, 2.0)
                continue
            failing_since, retry, asked = None, RETRY, True
            if isinstance(reply, Grant):
                if core.now() < sent + timing.ttl - timing.margin:
                    claim = Claim(ask.name, ask.attempt, reply.token, reply.hint, sent + timing.ttl)
                    _tell_taken(core, claim, reply.taken_from)
                    return Taken(claim, sent)
                continue  # the answer came too late to be of use: ask for a new term
            if isinstance(reply, Mismatch):
                raise WrongShape(
                    f"{ask.name!r} is in use as a {reply.shape} with limit {reply.limit}; "
                    f"it cannot be a {ask.shape} with limit {ask.limit} at the same time"
                )
            now = core.now()
            if not ask.queue or (ends is not None and now >= ends):
                raise _timed_out(core, ask, reply, now - started)
            listened = True
            pushed = yield Listen(ask.attempt, reply)
            look = core.now() + (policy.FALLBACK if pushed else next(pauses))
            handed = yield from _wait(core, reply, look if ends is None else min(look, ends), bell)
            taken = None if handed is None else _handed(core, spec, ask, handed, reply, sent)
            if taken is not None:
                core.check_open()
                _tell_taken(core, taken.claim, None)
                return taken
    finally:
        if listened:
            core.driver.forget(ask.attempt)


def _wait(core: Core, busy: Busy, look: float, bell: Bell) -> Effects[Grant | None]:
    """Sleep until there is reason to ask again, at ``look`` at the latest. A push may bring the lease itself."""
    while True:
        now = core.now()
        until = look
        if busy.expires_in is not None:
            until = min(until, now + max(0.001, busy.expires_in + policy.STAGGER * (busy.place or 0)))
        yield Wait(bell, max(0.0, until - now))
        news, bell.news = bell.news, None
        if not isinstance(news, Busy):
            return news
        busy = news  # how the name stands now, so there is no need to ask


def _handed(core: Core, spec: Spec, ask: Ask, grant: Grant, busy: Busy, sent: float) -> Taken | None:
    """The lease that another's release granted us, if it can be trusted without asking.

    The store's clock read ``busy.now`` after ``sent``, so that the grant came no earlier than this.
    """
    timing = spec.timing
    if grant.at is None or busy.now is None or not timing.renew:
        return None
    if grant.at <= busy.now:
        return None  # older than the answer that said Busy: it has been taken from us since
    now = core.now()
    since = min(now, sent + (grant.at - busy.now) / SECOND)
    if now >= since + timing.first_term:
        return None
    claim = Claim(ask.name, ask.attempt, grant.token, grant.hint, since + timing.ttl)
    return Taken(claim, since, timing.first_term)


def owes(ask: Ask, error: BaseException) -> bool:
    """Whether an acquire that ended with ``error`` may have left something in the store."""
    if isinstance(error, AcquireTimeout):
        return ask.queue
    if isinstance(error, StoreNotReady):
        return not error.nothing_asked
    return not isinstance(error, WrongShape)


def owed(core: Core, ask: Ask) -> Unsettled:
    return Unsettled(ask.name, ask.attempt, core.now() + max(ask.ttl / SECOND, policy.WAITER_TTL))


def abandon(core: Core, ask: Ask, error: BaseException) -> Effects[None]:
    """See to it that the attempt holds nothing. If the store does not answer, the keeper goes on trying."""
    settled = False
    try:
        if not isinstance(error, StoreUnavailable):
            yield Run(core.store.abandon(ask.name, ask.attempt), 1.0)
            settled = True
    except StoreError:
        pass
    finally:  # also when whoever carries this out is interrupted
        if not settled:
            core.settle(owed(core, ask))


def release(core: Core, lease: BaseLease) -> Effects[bool]:
    """Give back a lease that the caller has ended. False when the store says that it was another's already."""
    claim = lease._claim
    settled = False
    try:
        steps = core.store.release(claim.name, claim.attempt, claim.token, claim.hint)
        given: bool = yield Run(steps, lease._spec.timing.call_limit)
        settled = True
    except StoreError as error:
        core.tell("release_failed", claim.name, claim.token, str(error))
        raise
    finally:
        if not settled:
            core.settle(claim.owed())
    if given:
        core.tell("released", claim.name, claim.token, f"token {claim.token}")
    else:
        reason = "the store has it as another's, or as free"
        fields: dict[str, Any] = {"name": claim.name, "token": claim.token, "owner": core.owner, "reason": reason}
        log(WARNING, "lease %r was not given back: %s", claim.name, reason, event="release_refused", **fields)
    return given


def renew(core: Core, lease: BaseLease, ttl: float | None) -> Effects[None]:
    """Renew one lease because its holder asks for it. Raises LeaseLost or StoreUnavailable."""
    lease.check()
    ttl = lease.ttl if ttl is None else policy.seconds(ttl, "ttl")
    margin = lease._spec.timing.margin_of(ttl)
    if ttl <= margin:
        raise ValueError(f"ttl of {ttl:g} s is not longer than its margin of {margin:g} s")
    yield from _renew_batch(core, [lease], ttl, lease._spec.timing.call_limit, fail=True)
    lease.check()


def close(core: Core, limit: float, bell: Bell) -> Effects[None]:
    """Mark what is held as lost and give it back; see waiters off; all within ``limit``."""
    ends = core.now() + limit
    for waiting in list(core.asking.values()):
        waiting.ring()
    for lease in core.held():
        core.lose(lease, CLOSED)
        core.owe(lease._claim.owed())
    while core.unsettled and core.now() < ends:
        yield from _settle(core, ends)
    while core.asking and core.now() < ends:
        yield Wait(bell, 0.005)


# Keeping.


def keep(core: Core, bell: Bell) -> Effects[None]:
    """The keeper: renew what is due, settle what is open, sleep until the next is due. Ends when ``closed``."""
    tidy_at = core.now()
    yield Listen("", None)  # for news of what is held
    while core.closed is None and not (core.dropped and not core.leases):
        try:
            yield from _renew_due(core)
            # The rest has time: if the store hangs over it, the next renewal must not wait for that.
            yield from _settle(core)
            if core.now() >= tidy_at:
                tidy_at = core.now() + TIDY_EVERY
                yield Run(core.store.tidy(), _limit(core, _next_due(core)))
        except StoreError as error:
            log(DEBUG, "housekeeping has to wait: %s", error)
        except Exception as error:  # a keeper that dies would lose every lease
            log(ERROR, "the keeper stumbled and goes on: %s", error, exc=error)
            yield Wait(bell, RETRY)
        yield Wait(bell, _next_look(core))


def _next_due(core: Core) -> float:
    return min((lease._due for lease in core.held()), default=float("inf"))


def _limit(core: Core, ends: float) -> float:
    return max(0.1, min(policy.CALL_LIMIT, ends - core.now()))


def _next_look(core: Core) -> float | None:
    """Note when the keeper has to look again, and how long that is."""
    now = core.now()
    with core.mutex:  # a lease that is added meanwhile must see either no look, or the right one
        due = _next_due(core)
        if due == float("inf") and core.busy:
            # Leases come and go. Look again when one that comes now would be due: then none has to wake us.
            due = now + core.cadence
        core.busy = False
        core.next_look = min(due, now + RETRY * 2) if core.unsettled else due
        return None if core.next_look == float("inf") else max(0.0, core.next_look - now)


def _renew_due(core: Core) -> Effects[None]:
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
    for start in range(0, len(due), BATCH):
        batch = due[start : start + BATCH]
        now = core.now()
        cadence = min(lease._spec.timing.renew_every for lease in batch)
        left = min(lease._deadline for lease in batch) - now
        yield from _renew_batch(core, batch, None, max(0.05, min(policy.CALL_LIMIT, cadence, left)))


def _renew_batch(
    core: Core, leases: list[BaseLease], ttl: float | None, limit: float, fail: bool = False
) -> Effects[None]:
    sent = core.now()
    terms = [lease.ttl if ttl is None else ttl for lease in leases]
    asks = [
        Renewal(lease.name, lease._claim.attempt, lease.token, int(term * SECOND))
        for lease, term in zip(leases, terms, strict=True)
    ]
    try:
        outcomes = yield Run(core.store.renew(asks), limit)
    except StoreError as error:
        core.renewal_failures += len(leases)
        for lease in leases:
            _renewal_failed(core, lease, error)
        if fail:
            raise
        return
    for lease, term, outcome in zip(leases, terms, outcomes, strict=True):
        if outcome == RENEWED:
            core.renewals += 1
            lease._renewed(sent, term)
        else:
            core.renewal_failures += 1
            core.lose(lease, INTERRUPTED if outcome == BROKEN else TAKEN)


def _probe(core: Core, lease: BaseLease) -> Effects[None]:
    """Ask whether a lease that is not to be renewed is still ours: a renewal that adds nothing to its term."""
    claim = lease._claim
    left = max(1, int((claim.until - core.now()) * SECOND))
    try:
        [outcome] = yield Run(core.store.renew([Renewal(claim.name, claim.attempt, claim.token, left)]), 1.0)
    except StoreError:
        return
    if outcome != RENEWED:
        core.lose(lease, INTERRUPTED if outcome == BROKEN else TAKEN)


def _renewal_failed(core: Core, lease: BaseLease, error: StoreError) -> None:
    """Unknown, not lost: try again soon. A failed *cycle* is counted once per ``renew_every``."""
    now = core.now()
    timing = lease._spec.timing
    if now >= lease._cycle:
        lease._failures += 1
        lease._cycle = now + timing.renew_every
        core.tell("renewal_failed", lease.name, lease.token, str(error))
        if lease._failures >= timing.max_renew_failures:
            core.lose(lease, f"renewal failed in {lease._failures} cycles in a row: {error}")
    if timing.renew:
        lease._due = now + min(timing.renew_every / 4, 1.0, max(0.02, (lease._deadline - now) / 4))


def _settle(core: Core, ends: float = float("inf")) -> Effects[None]:
    """Give back what is owed, or try until ``ends``; what is not taken stays on the list until the store forgets it.

    It also stays while it is being given back: the keeper may be stopped in the middle, and whoever closes must see it.
    """
    for owed in list(core.unsettled):
        try:
            if owed.token is None:
                steps = core.store.abandon(owed.name, owed.attempt)
            else:
                steps = core.store.release(owed.name, owed.attempt, owed.token, None)
            yield Run(steps, _limit(core, min(ends, _next_due(core), core.now() + core.cadence)))
        except StoreError:
            if core.now() < owed.until:
                core.unsettled.append(owed)  # again, behind the others
        core.settled(owed)
        if core.now() >= min(ends, _next_due(core)):
            return  # the rest has time, what is due has not


# Looking.


def info(holding: Holding) -> LeaseInfo:
    """A holding for people: wall-clock times, data decoded."""
    import json
    from datetime import UTC, datetime, timedelta

    now = datetime.now(UTC)
    return LeaseInfo(
        holding.name,
        holding.kind,
        holding.owner,
        holding.token,
        None if holding.data is None else json.loads(holding.data),
        now - timedelta(seconds=holding.age),
        now + timedelta(seconds=holding.expires_in),
        holding.waiters,
    )


def metrics(core: Core, holdings: Iterable[Holding]) -> LockMetrics:
    by_kind: dict[str, int] = {}
    by_owner: dict[str, int] = {}
    ages = []
    expired = 0
    for holding in holdings:
        if holding.expires_in <= 0:
            expired += 1
            continue
        ages.append(holding.age)
        by_kind[holding.kind] = by_kind.get(holding.kind, 0) + 1
        by_owner[holding.owner] = by_owner.get(holding.owner, 0) + 1
    average = sum(ages) / len(ages) if ages else 0.0
    longest = max(ages, default=0.0)
    counts = (core.renewals, core.renewal_failures, core.unavailable)
    return LockMetrics(len(ages), by_kind, by_owner, average, longest, expired, *counts)


def _tell_taken(core: Core, claim: Claim, previous: Holding | None) -> None:
    if previous is None:
        core.tell("acquired", claim.name, claim.token, f"token {claim.token}")
    else:
        since = f"expired for {-previous.expires_in:.3g} s" if previous.expires_in <= 0 else "which has died"
        core.tell("taken_over", claim.name, claim.token, f"from {previous.owner}, {since}")


def _timed_out(core: Core, ask: Ask, busy: Busy, waited: float) -> AcquireTimeout:
    after = f" within {waited:.3g} s" if waited >= 0.001 else ""
    who = "it is busy"
    if busy.holder is not None:
        holder = busy.holder
        who = (
            f"held by {holder.owner} for {holder.age:.3g} s (token {holder.token}, until in {holder.expires_in:.3g} s)"
        )
    if busy.place is not None:
        who += f"; {busy.place} ahead in the queue"
    core.tell("busy", ask.name, None, who)
    return AcquireTimeout(f"{ask.name!r} could not be had{after}: {who}", busy.holder and info(busy.holder))
