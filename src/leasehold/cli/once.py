"""``leasehold once``: reads and records the outcome of COMMAND."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..core.log import shown
from ..errors import StoreNotReady
from ..kinds.once import outcomes
from ..kinds.once.call import Ran
from ..kinds.once.outcome import REFUSED, TooManyOutcomes
from .say import local, say
from .store import checked

if TYPE_CHECKING:
    from typing import Any

    from ..kinds.once.outcome import Outcome
    from ..threads.lease import Lease
    from ..threads.locks import Locks
    from .options import Options

BY_SIGNAL = [128 + each for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)]


class ExitStatus(Exception):
    """COMMAND failed with this exit status. The outcome is recorded with it."""


class Work:
    """One version of the work that ``leasehold once`` runs."""

    def __init__(self, options: Options, locks: Locks) -> None:
        self._once = checked(
            locks.once,
            options.name,
            version=options.work_version,
            per=options.per,
            retries=options.retries,
            keep=options.keep,
        )
        self._core = locks._core
        self._wanted = self._once._policy
        self._ends = outcomes.ends_at(self._core, 0.0 if options.no_wait else options.timeout)
        self._begun = time.monotonic()
        self._busy = options.on_busy_exit

    def left(self) -> float | None:
        """The seconds of ``--timeout`` that are left to acquire the lease, after the outcome was read."""
        return None if self._ends is None else max(0.0, self._ends - self._core.now())

    def settled(self, lease: Lease | None = None) -> int | None:
        """The exit code if the outcome is final; None if COMMAND has to run. Reads before the lease is acquired, or
        under it."""
        core, ends = self._core, self._ends
        if lease is not None:  # a slow read must leave enough of the lease for COMMAND
            halfway = core.now() + lease.remaining / 2
            ends = halfway if ends is None else min(ends, halfway)
        wanted = self._wanted._replace(ends=ends)
        try:
            if lease is None:
                known = core.drive(outcomes.look(core, self._once.name, wanted))
            else:
                known = self._once._turn(lease, wanted)
        except TooManyOutcomes as error:
            raise StoreNotReady(str(error)) from error
        self._wanted = known.wanted
        if known.outcome is not None and known.final:
            return self._busy if known.outcome.status == REFUSED else _told(known.outcome)
        self._begun = time.monotonic()
        return None

    def record(self, lease: Lease, status: int) -> bool:
        """Record COMMAND's exit status, unless a signal interrupted it. False if the lease was lost before that."""
        if status in BY_SIGNAL:
            return True
        duration = time.monotonic() - self._begun
        error = ExitStatus(status) if status else None
        ran = Ran(datetime.fromtimestamp(time.time() - duration, UTC), duration, status, error)
        known = self._core.drive(outcomes.record(self._core, lease, self._wanted, ran))
        self._once._archive(lease, known.shard)
        return known.outcome is not None


def _told(outcome: Outcome[Any]) -> int:
    """Say what is recorded. Returns the exit code."""
    what = "was already done" if outcome.ok else "failed"
    ran = f" (run by {shown(str(outcome.owner))}, {local(outcome.finished)})" if outcome.finished else " long ago"
    why = "" if outcome.ok or outcome.error is None else f": {shown(outcome.error)}"
    say(f"{outcome.name!r} version {outcome.version} {what}{ran}{why}")
    if outcome.ok:
        return 0
    return outcome.result if isinstance(outcome.result, int) else 1  # not an int: recorded by a Python program
