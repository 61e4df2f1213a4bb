"""``leasehold once``: reads and records the outcome of COMMAND."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..core.log import shown
from ..errors import StoreNotReady
from ..kinds.once.outcomes import Policy, Ran, TooManyOutcomes, ends_at, find_recorded, record
from .say import local, say
from .store import checked

if TYPE_CHECKING:
    from ..threads.lease import Lease
    from ..threads.locks import Locks
    from .options import Options

INTERRUPTED = [128 + each for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)]


class ExitStatus(Exception):
    """COMMAND failed with this exit status. The outcome is recorded with it."""


class Work:
    """One version of the work that ``leasehold once`` runs."""

    def __init__(self, options: Options, locks: Locks) -> None:
        self._once = checked(locks.once, options.name, version=options.work_version, retries=options.retries)
        self._core = locks._core
        self._policy: Policy = self._once._policy
        self._ends = ends_at(self._core, 0.0 if options.no_wait else options.timeout)
        self._begun = time.monotonic()

    def left(self) -> float | None:
        """The seconds of ``--timeout`` that are left to acquire the lease, after the outcome was read."""
        return None if self._ends is None else max(0.0, self._ends - self._core.now())

    def settled(self) -> int | None:
        """The exit code if the outcome is final; None if COMMAND has to run."""
        core, ends = self._core, self._ends
        for state in core.held():  # a slow read must leave enough of the lease for COMMAND
            halfway = core.now() + state.remaining(core.now()) / 2
            ends = halfway if ends is None else min(ends, halfway)
        try:
            outcome = core.drive(find_recorded(core, self._once.name, self._policy._replace(ends=ends)))
        except TooManyOutcomes as error:
            raise StoreNotReady(str(error)) from error
        if outcome is None or not self._policy.is_final(outcome):
            self._begun = time.monotonic()
            return None
        what = "was already done" if outcome.ok else "failed"
        ran = f" (run by {shown(str(outcome.owner))}, {local(outcome.finished)})" if outcome.finished else " long ago"
        why = "" if outcome.ok else f": {shown(str(outcome.error))}"
        say(f"{outcome.name!r} version {outcome.version} {what}{ran}{why}")
        if outcome.ok:
            return 0
        return outcome.result if isinstance(outcome.result, int) else 1  # not an int: recorded by a Python program

    def record(self, lease: Lease, status: int) -> bool:
        """Record COMMAND's exit status, unless a signal interrupted it. False if the lease was lost before that."""
        if status in INTERRUPTED:
            return True
        duration = time.monotonic() - self._begun
        error = ExitStatus(status) if status else None
        ran = Ran(datetime.fromtimestamp(time.time() - duration, UTC), duration, status, error)
        return self._core.drive(record(self._core, lease, self._policy, ran)) is not None
