"""``leasehold run``: hold a lease while COMMAND runs. ``leasehold once``: the same, for a COMMAND that is done once."""

from __future__ import annotations

import gc
import os
import signal

from ..typed import TYPE_CHECKING
from .child import Child, find
from .guardian import Guardian
from .options import UsageError, shown
from .say import held, say, span
from .watch import SLACK, Watch

if TYPE_CHECKING:
    from ..lock import Lease, Locks
    from .options import Options
    from .signals import Signals

NO_PROCESS, LOST, NOT_ENDED = 71, 74, 77
"""EX_OSERR, EX_IOERR and EX_NOPERM of sysexits.h."""
KILL_AFTER = 5.0
_VARIABLES = ("LEASEHOLD_NAME", "LEASEHOLD_TOKEN", "LEASEHOLD_OWNER")


def run(options: Options) -> int:
    """Run COMMAND under the lease; the exit code is COMMAND's, or says why there was none."""
    path, wrong = find(options.line[0])
    if wrong:  # found out before the lease is taken, so that with --min-hold another host still gets its turn
        say(f"{shown(options.line[0])}: {path}")
        return wrong
    try:
        child = Child(path, options.line)
        guardian = Guardian(child.pid)
    except OSError as error:  # (a child that is there already ends with us)
        say(f"no process can be started: {error.strerror}")
        return NO_PROCESS
    gc.disable()  # until COMMAND has been started: looking for garbage while loading takes a tenth of the time
    try:
        return _run(options, child, guardian)
    finally:
        if child.started and child.status is None:
            child.signal(signal.SIGKILL)  # an error of our own: nothing may go on without its lease
        guardian.dismiss()
        child.dismiss()
        guardian.reap()


def plan(ttl: float, kill_after: float | None) -> tuple[float, float]:
    """How often to renew, and how long before SIGKILL to send SIGTERM.

    When renewals fail, COMMAND must be dead before the lease ends. So what ``kill_after`` and the safety margins leave
    of ``ttl`` is all the time there is for renewing, and at least two tries must fit into it.
    """
    from .. import policy
    from .store import checked

    timing = checked(policy.make_timing, ttl=ttl)
    if kill_after is None:
        kill_after = min(KILL_AFTER, ttl / 6)
    room = ttl - timing.margin - SLACK - kill_after
    every = min(timing.renew_every, room / 2)
    if every < ttl / 10:
        longest = 0.8 * ttl - timing.margin - SLACK
        raise UsageError(
            f"--kill-after {span(kill_after)} is too long for --ttl {span(ttl)}: when the lease can't be renewed, "
            f"COMMAND must be dead {span(timing.margin + SLACK)} before it ends, which leaves {span(room)} for "
            f"renewals; use at most --kill-after {longest:.3g}s, or a longer --ttl"
        )
    return every, kill_after


def _run(options: Options, child: Child, guardian: Guardian) -> int:
    from .signals import Signals
    from .store import leave, open_store

    renew_every, kill_after = plan(options.ttl, options.kill_after)
    signals = Signals()
    locks = open_store(options)
    try:
        work, timeout = None, 0.0 if options.no_wait else options.timeout
        if options.command == "once":
            from .once import Work

            work = Work(options, locks)
            if (code := work.settled()) is not None:
                return code
            timeout = work.left()
        lease = _acquire(options, locks, renew_every, signals, timeout)
        if isinstance(lease, int):
            return lease
        if work is not None and (code := work.settled()) is not None:  # another has done it while we waited
            assert lease is not None
            _release(lease, None, 0)
            return code
        environment: dict[str, str | None] = dict.fromkeys(_VARIABLES)
        if lease is not None:
            environment = dict(zip(_VARIABLES, (lease.name, str(lease.token), lease.owner), strict=True))
        signals.pass_on()  # before COMMAND can be seen: a Ctrl-Z would stop us, and not it
        # Whoever can tell by an open file that we live must not think us dead before COMMAND is.
        child.start(environment, getattr(locks._core.driver, "life", None))
        gc.freeze()  # what is loaded stays, and need not be looked through
        gc.enable()
        watch = Watch(child, guardian, signals)
        reason = watch.until_end(lease, kill_after, renew_every)
        guardian.dismiss()
        child.take_terminal()
        if watch.runs_on:
            guardian.reap()
            os._exit(NOT_ENDED)  # on every other way the lease is given back, and COMMAND still relies on it
        assert child.status is not None
        if work is not None and lease is not None and reason is None and not work.record(lease, child.status):
            reason = "it was lost before the outcome was recorded"
        return child.status if lease is None else _release(lease, reason, child.status)
    finally:
        leave(locks)


def _acquire(
    options: Options, locks: Locks, renew_every: float, signals: Signals, timeout: float | None
) -> Lease | int | None:
    """The lease; None when COMMAND is to run without it; an exit code when it is not to run."""
    from ..engine import WrongShape
    from ..errors import AcquireCancelled, AcquireTimeout, StoreUnavailable
    from .store import checked

    lock = checked(
        locks.lock,
        options.name,
        ttl=options.ttl,
        renew_every=renew_every,
        min_hold=options.min_hold,
        kind="once" if options.command == "once" else "lock",
    )
    try:
        lease = lock.acquire(timeout, cancel=signals)
    except AcquireCancelled:
        return 128 + signals.take()[0]
    except AcquireTimeout as error:
        who = held(error.holder) if error.holder is not None else "others wait for it"
        waited = f" after {span(options.timeout)}" if options.timeout else ""
        say(f"{options.name!r} is busy{waited}: {who}")
        return options.on_busy_exit
    except WrongShape as error:
        raise UsageError(str(error)) from error
    except StoreUnavailable as error:
        if options.on_unavailable == "fail":
            raise
        if options.on_unavailable == "skip":
            say(f"skipped, as --on-unavailable says: {error}")
            return options.on_busy_exit
        say(f"COMMAND runs without the lease, as --on-unavailable says: {error}")
        return None
    if signals.is_set():
        _release(lease, None, 0)
        return 128 + signals.take()[0]
    return lease


def _release(lease: Lease, reason: str | None, status: int) -> int:
    """Give the lease back. COMMAND's status counts only if the lease was held until COMMAND had ended."""
    from ..errors import StoreError

    try:
        ours = lease.release()  # also of one that is lost: a broken lease is free when its holder says that it stopped
    except StoreError as error:
        ours = True  # as far as we know
        say(f"lease {lease.name!r} could not be given back and ends by itself within {span(lease.ttl)}: {error}")
    if reason is None and not ours:
        say(f"lease {lease.name!r} was no longer ours when COMMAND ended (with status {status})")
    return status if ours and reason is None else LOST
