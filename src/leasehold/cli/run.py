"""``leasehold run``: hold a lease while COMMAND runs. ``leasehold once``: the same, and run COMMAND only once."""

from __future__ import annotations

import gc
import os
import signal
from typing import TYPE_CHECKING

from ..core import clock
from .child import Child, find
from .guardian import Guardian
from .options import UsageError
from .say import say, span
from .supervisor import SLACK, Supervisor
from .values import shown

if TYPE_CHECKING:
    from ..threads.lease import Lease
    from .once import Work
    from .options import Options
    from .signals import Signals

NO_PROCESS, LOST, NOT_ENDED = 71, 74, 77
"""EX_OSERR, EX_IOERR and EX_NOPERM of sysexits.h."""
KILL_AFTER = 5.0
_VARIABLES = ("LEASEHOLD_NAME", "LEASEHOLD_TOKEN", "LEASEHOLD_OWNER")


def run(options: Options) -> int:
    """Run COMMAND under the lease. Returns COMMAND's exit code, or one that says why COMMAND did not run."""
    path, wrong = find(options.line[0])
    if wrong:  # checked before the acquire: with --min-hold the lease would keep another host from running
        say(f"{shown(options.line[0])}: {path}")
        return wrong
    try:
        child = Child(path, options.line)
        guardian = Guardian(child.pid)
    except OSError as error:  # (a child that was forked before the error ends with this process)
        say(f"cannot start a process: {error.strerror}")
        return NO_PROCESS
    gc.disable()  # until COMMAND has started: garbage collection during imports takes a tenth of the time
    try:
        return _run(options, child, guardian)
    finally:
        if child.started and child.status is None:
            child.signal(signal.SIGKILL)  # `run` failed with an error: COMMAND must not run without its lease
        guardian.dismiss()
        child.dismiss()
        guardian.reap()


def plan(ttl: float, kill_after: float | None) -> tuple[float, float]:
    """How often to renew, and how long before SIGKILL to send SIGTERM. Raises UsageError.

    If renewals fail, COMMAND must be dead before the lease expires. The time for renewals is therefore ``ttl`` minus
    ``kill_after`` and the safety margins, and two tries must fit into it.
    """
    from ..core.timing import make_timing
    from .store import checked

    timing = checked(make_timing, ttl=ttl)
    if kill_after is None:
        kill_after = min(KILL_AFTER, ttl / 6)
    room = ttl - timing.margin - SLACK - kill_after
    every = min(timing.renew_every, room / 2)
    if every < ttl / 10:
        longest = 0.8 * ttl - timing.margin - SLACK
        raise UsageError(
            f"--kill-after {span(kill_after)} is too long for --ttl {span(ttl)}: COMMAND must be dead "
            f"{span(timing.margin + SLACK)} before the lease expires, which leaves {span(room)} for renewals; "
            f"use at most --kill-after {longest:.3g}s, or a longer --ttl"
        )
    return every, kill_after


def _run(options: Options, child: Child, guardian: Guardian) -> int:
    from .acquire import acquire
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
        lease = acquire(options, locks, renew_every, signals, timeout)
        if isinstance(lease, int):
            return lease
        began = clock.now()
        if lease is not None and signals.is_set():  # since the lease was granted
            _release(lease, None, 0)
            return 128 + signals.take()[0]
        if work is not None and lease is not None and (code := _settled(work, lease)) is not None:
            return code
        _start(child, lease, signals, getattr(locks._core.driver, "life", None))
        supervisor = Supervisor(child, guardian, signals)
        reason = supervisor.until_end(lease, kill_after, renew_every)
        guardian.dismiss()
        child.take_terminal()
        if supervisor.runs_on:
            guardian.reap()
            os._exit(NOT_ENDED)  # without a release: COMMAND still runs and relies on the lease
        assert child.status is not None
        if lease is None:
            return child.status
        if work is not None and reason is None and not work.record(lease, child.status):
            reason = "it was lost before the outcome was recorded"
        code = _release(lease, reason, child.status)
        if options.verbose and reason is None:
            say(f"released {lease.name!r} after {span(clock.now() - began)}; COMMAND exited with {child.status}")
        return code
    finally:
        leave(locks)


def _settled(work: Work, lease: Lease) -> int | None:
    """The exit code if another process ran COMMAND during the wait. The lease is released then, and after an error."""
    code: int | None = NO_PROCESS
    try:
        code = work.settled(lease)
    finally:
        if code is not None:
            _release(lease, None, 0)
    return code


def _start(child: Child, lease: Lease | None, signals: Signals, life: str | None) -> None:
    """Start COMMAND. Other processes see by an open file, ``life``, whether the holder lives: COMMAND keeps it open."""
    environment: dict[str, str | None] = dict.fromkeys(_VARIABLES)
    if lease is not None:
        environment = dict(zip(_VARIABLES, (lease.name, str(lease.token), lease.owner), strict=True))
    signals.pass_on()  # before COMMAND starts: otherwise a Ctrl-Z would stop `run` but not COMMAND
    child.start(environment, life)
    gc.freeze()  # loaded modules stay until the end: the collector can skip them
    gc.enable()


def _release(lease: Lease, reason: str | None, status: int) -> int:
    """Release the lease. Returns COMMAND's status if the lease was held until COMMAND ended, otherwise LOST."""
    from ..errors import StoreError

    try:
        ours = lease.release()  # a lost lease too: a broken lease becomes free when its holder releases it
    except StoreError as error:
        ours = True  # unknown, and nothing says otherwise
        say(f"cannot release lease {lease.name!r}; it expires within {span(lease.ttl)}: {error}")
    if reason is None and not ours:
        say(f"lease {lease.name!r} was lost before COMMAND ended (with exit status {status})")
    return status if ours and reason is None else LOST
