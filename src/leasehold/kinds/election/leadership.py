"""One leader among candidates: the part that elections of threads and of tasks share.

A term is a lease. A term is *over* before its lease expires: if it could not be renewed, its callback is notified to
stop ``stop_before`` seconds before the deadline, so that it has stopped when another candidate can lead.

A callback that raises an error ends its term, not the candidacy: the candidate backs off and campaigns again.
"""

from __future__ import annotations

from ...contract.kinds import ElectionContract
from ...core import timing
from ...core.effects import Effects, Run, Wait
from ...core.lease import BaseLease, own_state_of, registry_of
from ...core.listing import info
from ...core.log import ERROR, INFO, log
from ...core.options import Spec
from ...core.protocol import Bell
from ...core.registry import Registry
from ...core.timing import Duration
from ...errors import LeaseLost, StoreUnavailable
from ...model import LeaseInfo

RESIGNED = "the leader has resigned"
DRAINED = "its Locks is being drained"
INTERVAL = 1.0
"""How often an observer reads the leader. Also the longest sleep of a watch: deadlines count suspended time."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""How long a candidate whose callback failed waits before it campaigns again. Doubled from failure to failure."""


def stopping_before(spec: Spec, stop_before: Duration | None) -> float:
    """How long before its deadline a term is over. Raises ValueError if that leaves no time to renew."""
    own = spec.timing
    before = min(5.0, own.ttl / 6) if stop_before is None else timing.seconds(stop_before, "stop_before")
    room = own.ttl - own.margin - before
    if own.renew_every >= room:
        raise ValueError(
            f"stop_before of {before:g} s is too long: it leaves {room:.3g} s of the ttl of {own.ttl:g} s, and "
            f"the first renewal is due after {own.renew_every:.3g} s"
        )
    return before


class BaseTerm:
    """One term of leadership: the part without I/O."""

    def __init__(self, lease: BaseLease, stop_before: float, bell: Bell) -> None:
        self.lease = lease
        self._state = own_state_of(lease)
        self.over: str | None = None
        self.finished = False
        self.failed: BaseException | None = None
        """The error that the callback has raised, if the candidacy outlives it."""
        self._seen_over = False
        self._before = stop_before
        self._bell = bell
        lease.on_lost(lambda lease: bell.ring())

    @property
    def token(self) -> int:
        """The term's fencing token: greater than the token of every earlier term."""
        return self.lease.token

    @property
    def valid(self) -> bool:
        """Whether the callback leads at this moment. Computed from the clock; once False, it stays False."""
        if self.over is None and not self._seen_over and registry_of(self.lease).now() < self._stop_at():
            return True
        self._seen_over = True  # the callback may have stopped because of this answer: a late renewal must not revive
        return False

    def check(self) -> None:
        """Raise LeaseLost if the callback has to stop."""
        if not self.valid:
            raise LeaseLost(self.lease.name, self.over or self.lease.lost_reason or _not_renewed(self.lease))

    def end(self, reason: str) -> None:
        """Notify the callback to stop, because of ``reason``. The first reason counts. Idempotent."""
        if self.over is None and not self.finished:
            self.over = reason
            log(INFO, "term %d of election %r is over: %s", self.token, self.lease.name, reason, event="term_over")
            self._stop(reason)
        self._bell.ring()

    def close(self) -> None:
        """Note that the callback has returned. Called by ``run``. If the deadline to stop has passed, the callback was
        stopped and did not finish, even if the watch has not noticed it yet."""
        if not self.valid:
            self.end(self.lease.lost_reason or _not_renewed(self.lease))
        self.finished = True
        self._bell.ring()

    def _stop(self, reason: str) -> None:
        raise NotImplementedError

    def _stop_at(self) -> float:
        # A first term, granted by another holder's release, is shorter than later ones.
        until = self._state.trusted_until()
        if until < self._state.sent:
            return until
        return until - min(self._before, (until - self._state.sent) / 3)


def _not_renewed(lease: BaseLease) -> str:
    return f"it could not be renewed and expires in {lease.remaining:.3g} s"


def watch(core: Registry, term: BaseTerm) -> Effects[None]:
    """End the term in time. Returns when its callback has returned, or is late."""
    lease = term.lease
    while term.valid and not term.finished:
        yield Wait(term._bell, max(0.0, min(INTERVAL, term._stop_at() - core.now())))
    term.end(lease.lost_reason or _not_renewed(lease))
    ends = core.now() + term._before
    while not term.finished and core.now() < ends:
        yield Wait(term._bell, max(0.0, min(INTERVAL, ends - core.now())))
    if not term.finished:
        text = "the callback of election %r still runs after its term: another candidate may lead now"
        log(ERROR, text, lease.name, event="late", name=lease.name, token=term.token)


class BaseElection(ElectionContract):
    """The part of an election without I/O."""

    _core: Registry

    def __init__(self, core: Registry, spec: Spec, stop_before: float, on_error: str, locks: object) -> None:
        if on_error not in ("log", "raise"):
            raise ValueError(f'on_error must be "log" or "raise", not {on_error!r}')
        self._core = core
        self._spec = spec
        self._locks = locks  # kept alive: a Locks that is garbage-collected acquires no more leases
        self._before = stop_before
        self._on_error = on_error
        self._reset()

    def _reset(self) -> None:
        """Reset the state: no candidacy in this process yet."""
        self._born = self._core.generation
        self._term: BaseTerm | None = None
        self._running = False
        self._pause = FIRST_PAUSE

    def _reset_if_forked(self) -> None:
        """Reset the state in a forked child: the candidacy belongs to the parent process."""
        if self._born != self._core.generation:
            with self._core.mutex:
                if self._born != self._core.generation:
                    self._reset()

    def _begin_run(self) -> int:
        """Begin ``run``. Returns the generation of this process, which a fork changes."""
        self._reset_if_forked()
        with self._core.mutex:
            if self._running:
                raise RuntimeError(
                    f"this candidate of election {self.name!r} is running already: create another one with election()"
                )
            self._running = True
        self._pause = FIRST_PAUSE
        self._core.on_drain.append(self._drained)
        return self._born

    def _in_same_process(self, generation: int) -> bool:
        """Whether this is still the process in which ``run`` began. A callback may have forked and returned in the
        child, which is no candidate."""
        return generation == self._core.generation

    @property
    def name(self) -> str:
        """The name of the election."""
        return self._spec.name

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads at this moment. Computed from the clock."""
        self._reset_if_forked()
        term = self._term
        return term is not None and term.valid

    @property
    def healthy(self) -> bool:
        """False when this candidate does not run, and while it leads but cannot renew its term, or its callback still
        runs after the term. For health probes; no I/O."""
        self._reset_if_forked()
        term = self._term
        if term is None or term.finished:
            return self._running
        renewed, every = term._state.sent, term._state.spec.timing.renew_every
        return term.lease.valid and self._core.now() < renewed + 1.5 * every

    def resign(self) -> None:
        """End the term if this candidate leads: the callback is notified to stop, and ``run`` waits again, behind the
        other candidates. Not awaited."""
        self._end(RESIGNED)

    def _outlives(self, term: BaseTerm, error: BaseException) -> bool:
        """Whether the candidacy goes on after an error of its callback. Not in a child that the callback has forked."""
        if isinstance(error, LeaseLost) and not term.valid:
            return True  # how a callback stops at the end of its term
        if self._on_error == "raise" or self._born != self._core.generation:
            return False
        term.failed = error
        return True

    def _back_off(self, term: BaseTerm, stopped: bool) -> Effects[None]:
        """Log the error of the term's callback, and sleep before the next campaign, unless the candidate was
        ``stopped``. ``close`` and ``drain`` end the sleep.

        Called when the term's lease is released: log handlers may be slow."""
        core, error, term.failed = self._core, term.failed, None
        led = core.now() - term._state.acquired
        pause = FIRST_PAUSE if led > LONGEST_PAUSE else self._pause
        self._pause = min(2 * pause, LONGEST_PAUSE)
        stopped = stopped or core.closed is not None or core.draining is not None
        then = "the candidacy has ended" if stopped else f"this candidate campaigns again in {pause:.3g} s"
        text, why = "the callback of election %r failed; %s: %s", f"{type(error).__name__}: {error}"
        log(ERROR, text, self.name, then, why, exc=error, event="term_failed", name=self.name, token=term.token)
        del error  # its traceback keeps alive what the callback has left behind: leases, for example
        if stopped:
            return
        bell, key, ends = core.new_bell(), f"candidate {id(self)}", core.now() + pause
        core.asking[key] = bell  # close and drain ring what is in there
        try:
            while core.closed is None and core.draining is None and (left := ends - core.now()) > 0:
                yield Wait(bell, left)
        finally:
            core.asking.pop(key, None)

    def _drained(self) -> None:
        self._end(DRAINED)

    def _end(self, reason: str) -> None:
        self._reset_if_forked()
        term = self._term  # read once: it may end by itself at any moment
        if term is not None:
            term.end(reason)


def next_leader(core: Registry, name: str, seen: object) -> Effects[LeaseInfo | None]:
    """Wait until the leader's token differs from ``seen``; return the new leader, or None if nobody leads."""
    bell = core.new_bell()
    while True:
        core.check_open()
        pause = INTERVAL
        try:
            holdings = yield Run(core.store.inspect(name), timing.CALL_LIMIT)
        except StoreUnavailable:
            pass  # unknown: report no change
        else:
            holding = holdings[0] if holdings else None
            if seen != (holding and holding.token):
                return holding and info(holding)
            if holding is not None:
                pause = min(pause, max(0.01, holding.expires_in))
        yield Wait(bell, pause)
