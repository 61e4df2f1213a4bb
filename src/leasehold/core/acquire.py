"""How a lease is acquired: written once, for threads and for tasks. How it is given back is in ``release.py``.

What takes time is a generator of :mod:`leasehold.core.effects`: it yields a ``Run`` (a store operation), a ``Wait`` or
a ``Listen``, and is sent the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from ..errors import AcquireTimeout, LeaseLost, StoreError, StoreNotReady, StoreUnavailable
from . import timing
from .claim import NOT_THERE, Claim
from .effects import RETRY, Effects, Listen, Run, Wait
from .log import shown
from .options import Spec
from .places import Place
from .protocol import SECOND, Ask, Bell, Busy, Grant, Holding, Mismatch, Missing, Refusal, Reply, Steps, T, Together
from .registry import Registry
from .release import abandon
from .state import NEVER
from .waits import NOTICE_AFTER, gave_up, say_unavailable, say_waiting, timed_out, warn_of_self_wait


class WrongShape(ValueError):
    """The name is in use as another kind of lock."""

    shape = ""
    """That kind: lock, semaphore or rwlock."""
    unanswered = False
    """Whether an earlier call of the same attempt got no answer: the store may still carry it out."""


class Taken(NamedTuple):
    claim: Claim
    sent: float
    trusted: float | None = None
    """For how long after ``sent`` the lease can be trusted, if that is a first term and not the whole ttl."""


def acquire(core: Registry, spec: Spec, ask: Ask, timeout: float | None, bell: Bell, born: int) -> Effects[Taken]:
    """Call the store until the lease is granted; wait in between. Raises AcquireTimeout, StoreUnavailable, LeaseLost,
    WrongShape.

    Unless it returns, the caller must abandon the attempt; not in a child that was forked since the generation in which
    the acquire was ``born``. There it ends with LeaseLost: what it may be granted is the parent's.
    """
    attempt = Attempt(core, spec, ask, timeout, bell, born)
    listened = False
    try:
        while True:
            core.check_process(born, ask.name)
            core.check_giving_out(ask.heir)
            sent = core.now()
            reply = yield from attempt.call(sent)
            if reply is None:
                continue
            if isinstance(reply, Grant):
                taken, previous = _granted(core, spec, ask, reply, sent), reply.taken_from
            else:
                busy = attempt.may_wait(reply)
                listened = True
                taken, previous = (yield from attempt.wait(busy, sent)), None
            if taken is None:
                continue  # there is no grant yet, or it came too late
            core.check_process(born, ask.name)
            core.check_giving_out(ask.heir)  # a close or a drain since: the caller abandons the grant
            _report_taken(core, ask, taken.claim, previous, attempt.started)
            return taken
    except BaseException as error:
        core.note_failure(ask.kind, attempt.started, error)
        raise
    finally:
        if listened:
            core.driver.forget(ask.attempt)


class Attempt:
    """One acquire under way: when it has to end, and what became of its calls so far."""

    def __init__(self, core: Registry, spec: Spec, ask: Ask, timeout: float | None, bell: Bell, born: int) -> None:
        self.core, self.spec, self.ask, self.bell, self.born = core, spec, ask, bell, born
        self.started = core.now()
        self.ends = None if timeout is None else self.started + timeout
        self.asked = False
        """Whether a call may have reached the store."""
        self.unanswered = False
        """Whether a call got no answer: the store may still carry it out."""
        self.failing_since: float | None = None
        self.failures = 0
        """Calls without an answer since ``failing_since``."""
        self.retry = RETRY
        self.notice_at = self.started + NOTICE_AFTER
        """When to log that this acquire waits; NEVER once it has."""
        self.warned: bool | None = None
        """Whether a warning has said that it waits for itself; None until a wait begins."""
        self.pauses: Iterator[float] | None = None

    def call(self, sent: float) -> Effects[Reply | None]:
        """Call the store once. None: there was no useful answer, and it is time for the next call."""
        core, ask = self.core, self.ask
        limit = self.spec.timing.call_limit
        if self.ends is not None and ask.queue:
            limit = min(limit, max(0.5, self.ends - sent))
        try:
            reply: Reply | None = yield from _ask(core, self.born, ask.name, core.store.acquire(ask), limit)
            if isinstance(reply, Busy) and reply.holder is not None and reply.holder.attempt == ask.attempt:
                # It was granted and then broken before this acquire got the grant. Nobody uses it: release it.
                yield Run(core.store.release(ask.name, ask.attempt, reply.holder.token, None), limit)
                reply = None
        except StoreNotReady as error:
            error.nothing_asked = not self.asked
            raise
        except StoreUnavailable as error:
            yield from self._unavailable(error, sent)
            return None
        self.failing_since, self.retry, self.asked = None, RETRY, True
        return reply

    def _unavailable(self, error: StoreUnavailable, sent: float) -> Effects[None]:
        """Pause before the next call, or raise the error if there is none.

        Whether the lease was granted is unknown: the next call of the same attempt finds out."""
        core, ask, ends = self.core, self.ask, self.ends
        if error.reentered:
            raise error
        if error.queued and ask.queue and (ends is None or core.now() < ends):
            return  # the store is not away: this process sends it more than it can answer at a time
        self.asked = self.unanswered = True
        core.unavailable += 1
        now = core.now()
        began = self.failing_since is None
        if self.failing_since is None:
            self.failing_since, self.failures = sent, 0
        self.failures += 1
        left = (self.failing_since + timing.UNAVAILABLE_LIMIT if ends is None else ends) - now
        retries = left > 0 and ask.queue
        if began:
            retry_for = left if retries else 0.0
            say_unavailable(core, ask.name, error, retry_for, kind=ask.kind, asked=self.started)
        if not retries:
            cause = error.__cause__ and error.__cause__.with_traceback(None)  # the way through the driver says nothing
            raise gave_up(f"acquire {ask.name!r}", error, self.failures, self.failing_since, now) from cause
        yield Wait(self.bell, self.retry if ends is None else min(self.retry, ends - now))
        self.retry = min(self.retry * 2, 2.0)

    def may_wait(self, reply: Busy | Mismatch | Missing) -> Busy:
        """The answer, if this acquire may wait for the lease. Otherwise raise the error for its caller."""
        if isinstance(reply, Missing):
            raise LeaseLost(self.ask.name, NOT_THERE)
        if isinstance(reply, Mismatch):
            wrong = _wrong_shape(self.ask, reply)
            wrong.unanswered = self.unanswered
            raise wrong
        now = self.core.now()
        if not self.ask.queue or (self.ends is not None and now >= self.ends):
            if self.warned is False:
                self.warned = warn_of_self_wait(self.core, self.ask, reply, begins=False)
            raise timed_out(self.core, self.ask, reply, self.started)
        return reply

    def wait(self, busy: Busy, sent: float) -> Effects[Taken | None]:
        """Sleep until it is time for the next call. A wake-up may carry the lease itself."""
        core, spec, bell = self.core, self.spec, self.bell
        if self.warned is None:
            self.warned = warn_of_self_wait(core, self.ask, busy, begins=True)
        pushed = yield Listen(self.ask.attempt, busy)
        pause = longest = timing.FALLBACK
        if not pushed:
            self.pauses = self.pauses or timing.pauses(spec.poll, spec.backoff)
            pause, longest = _poll(spec, busy, next(self.pauses)), _poll(spec, busy, spec.poll[1])
        kept = core.store.keeps_places and busy.place is not None
        place = Place(self.ask, bell, busy, sent, core.now(), pause, longest, kept)
        try:
            if kept:
                bell.place = place
                core.check_places_from(place.due)
            grant = yield from self._sleep(place, pushed)
        finally:
            bell.place = None
        return None if grant is None else _handed(core, spec, self.ask, grant, *place.answer)

    def _sleep(self, place: Place, pushed: bool) -> Effects[Grant | None]:
        """Sleep until a wake-up, or until the place has to be checked by its waiter."""
        core, bell = self.core, self.bell
        told: tuple[Busy, float] | None = None
        while True:
            until = self._until(place)
            wake_at = min(until, self.notice_at)
            rang = yield Wait(bell, max(0.0, wake_at - core.now()))
            news, bell.news = bell.news, None
            if isinstance(news, Busy):
                place.learn(news, core.now())  # so there is no need for a call
                told = news, core.now()
                if place.kept:
                    core.check_places_from(place.due)
            elif news is not None or rang:
                return news
            elif wake_at < until:  # time to log the wait, and no more
                self.notice_at = NEVER
                latest, at = max(place.answer, told or place.answer, key=itemgetter(1))
                self._log_wait(latest, core.now() - at)
            elif self._until(place) <= until or (yield Listen(self.ask.attempt, place.answer[0])) != pushed:
                return None  # otherwise the keeper has put off the check

    def _log_wait(self, busy: Busy, age: float) -> None:
        if not self.warned:
            self.warned = warn_of_self_wait(self.core, self.ask, busy, begins=False)
        say_waiting(self.core, self.ask, busy, age)

    def _until(self, place: Place) -> float:
        return place.until if self.ends is None else min(place.until, self.ends)


def acquire_all(
    core: Registry, specs: Sequence[Spec], asks: Sequence[Ask], timeout: float | None, born: int
) -> Effects[list[Taken] | None]:
    """Take several names in one step of the store. None: not now, or not in one step; then nothing is held.

    Never waits. If a name is busy: AcquireTimeout if ``timeout`` is 0, else None, and the caller waits. Unless it
    returns, the caller must abandon the attempts, as after ``acquire``; in a forked child it ends with LeaseLost, too.
    """
    waits = timeout is None or timeout > 0
    limit = specs[0].timing.call_limit
    if timeout:
        limit = min(limit, max(0.5, timeout))
    core.check_process(born, asks[0].name)
    sent = core.now()
    try:
        reply: Together = yield from _ask(core, born, asks[0].name, core.store.acquire_all(asks), limit)
    except StoreNotReady as error:
        error.nothing_asked = True
        raise
    except StoreUnavailable as error:
        core.unavailable += 1
        if not waits:
            core.note_failure(asks[0].kind, sent, error)
            core.tell("unavailable", asks[0].name, None, str(error), kind=asks[0].kind, asked=sent)
            raise
        yield from abandon(core, asks, error)
        return None
    if reply is None:
        return None
    if isinstance(reply, Refusal):
        ask, why = asks[reply.place], reply.why
        if isinstance(why, Mismatch):
            raise _wrong_shape(ask, why)
        if not waits:
            refused = timed_out(core, ask, why, sent)
            core.note_failure(ask.kind, sent, refused)
            raise refused
        return None
    core.check_giving_out()
    taken = [_granted(core, *each, sent) for each in zip(specs, asks, reply, strict=True)]
    in_time = [each for each in taken if each is not None]
    if len(in_time) < len(taken):
        yield from abandon(core, asks, None)
        return None
    for ask, each, grant in zip(asks, in_time, reply, strict=True):
        _report_taken(core, ask, each.claim, grant.taken_from, sent)
    return in_time


def _ask(core: Registry, born: int, name: str, steps: Steps[T], limit: float) -> Effects[T]:
    """Call the store. In a child that was forked during the call, what comes of it is the parent's: LeaseLost."""
    try:
        reply: T = yield Run(steps, limit)
    except StoreError:
        core.check_process(born, name)
        raise
    core.check_process(born, name)
    return reply


def _granted(core: Registry, spec: Spec, ask: Ask, grant: Grant, sent: float) -> Taken | None:
    """The lease of a grant that was requested at ``sent``; None if its deadline has passed already."""
    timing = spec.timing
    token, hint, _, _, since = grant
    if since is None or since > sent:
        since = sent
    until = since + timing.ttl
    if core.now() >= until - timing.margin:
        return None
    return Taken(Claim(ask.name, ask.attempt, token, hint, until), since)


def _wrong_shape(ask: Ask, found: Mismatch) -> WrongShape:
    error = WrongShape(
        f"{ask.name!r} is in use as a {found.shape} with limit {found.limit}; "
        f"it cannot be a {ask.shape} with limit {ask.limit} at the same time"
    )
    error.shape = found.shape
    return error


def _poll(spec: Spec, busy: Busy, pause: float) -> float:
    """How long a polling waiter may sleep. In the queue, short enough to see a grant before its first term ends."""
    return pause if busy.place is None else min(pause, max(spec.poll[0], timing.FIRST_TERM / 2))


def _handed(core: Registry, spec: Spec, ask: Ask, grant: Grant, busy: Busy, sent: float) -> Taken | None:
    """The lease that another's release granted this attempt, if it can be trusted without a call.

    The store's clock read ``busy.now`` after ``sent``, so the grant came no earlier than computed here.
    """
    own = spec.timing
    if grant.at is None or busy.now is None or not own.renew:
        return None
    if grant.at <= busy.now if busy.token is None else grant.token <= busy.token:
        return None  # older than the Busy: the grant has been lost since
    now = core.now()
    granted = sent + (grant.at - busy.now) / SECOND
    if granted > now + own.margin_of(timing.FIRST_TERM):
        return None  # the store's clock was set forward meanwhile, so the time of the grant is unknown
    since = min(now, granted)
    if now >= since + own.first_term:
        return None
    claim = Claim(ask.name, ask.attempt, grant.token, grant.hint, since + own.ttl)
    return Taken(claim, since, own.first_term)


def owes(ask: Ask, error: BaseException) -> bool:
    """Whether an acquire that ended with ``error`` may have left something in the store."""
    if isinstance(error, AcquireTimeout):
        return ask.queue
    if isinstance(error, StoreNotReady):
        return not error.nothing_asked
    return not isinstance(error, WrongShape) or error.unanswered


def _report_taken(core: Registry, ask: Ask, claim: Claim, previous: Holding | None, asked: float) -> None:
    if previous is None or not previous.attempt:  # without one it was released, and only min_hold had not ended
        core.tell("acquired", claim.name, claim.token, kind=ask.kind, asked=asked)
    else:
        left = previous.expires_in
        since = f"whose lease expired {-left:.3g} s ago" if left <= 0 else "whose process has died"
        fields: dict[str, Any] = {"taken_from": previous.owner, "expired_for": max(0.0, -previous.expires_in)}
        why = f"from {shown(previous.owner)}, {since}"
        core.tell("taken_over", claim.name, claim.token, why, kind=ask.kind, asked=asked, **fields)
