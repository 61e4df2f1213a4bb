"""While COMMAND runs: stop it before its lease expires (SIGTERM, then SIGKILL), and pass signals on to it."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from typing import TYPE_CHECKING

from ..core import clock
from ..core.lease import registry_of, state_of
from ..runtime.ready import readable
from .say import say, span
from .signals import ENDING

if TYPE_CHECKING:
    from ..threads.lease import Lease
    from .child import Child
    from .guardian import Guardian
    from .signals import Signals

SLACK = 0.05
"""COMMAND is killed this long before the deadline of its lease, so that it is dead by then."""
_LOOK_EVERY = 0.01
"""How often to check whether a group that is being stopped has ended: no signal reports the end of its last process."""
_UNKILLABLE = 1.0
"""How long to wait after SIGKILL. Processes left then are dead but not collected, or stuck in the kernel."""

_ANOTHER_USER = "runs as another user and cannot be signalled"


class Supervisor:
    """Watches COMMAND, its lease and the signals to ``run``."""

    def __init__(self, child: Child, guardian: Guardian, signals: Signals) -> None:
        self._child = child
        self._guardian = guardian
        self._signals = signals
        self._suspended = False
        self.runs_on = False
        """Whether COMMAND could not be stopped, because it runs as another user."""

    def until_end(self, lease: Lease | None, kill_after: float, renew_every: float) -> str | None:
        """Return when COMMAND has ended: None, or the reason if it was stopped because its lease was lost or could not
        be renewed."""
        if lease is not None:
            lease.on_lost(lambda lease: self._signals.ring())
        while True:
            resumed = self._stopped_with(self._child.look(), lease)
            pause = None
            if lease is not None:
                now, deadline = clock.now(), state_of(lease).deadline
                stop_at = deadline - SLACK - kill_after
                self._guardian.tell(deadline - SLACK / 2)
                reason = lease.lost_reason
                if reason is None and now >= stop_at and self._child.status is None:
                    reason = f"it could not be renewed and expires in {span(deadline - now)}"
                if reason is not None:
                    kill_at = min(now + kill_after, deadline - SLACK)
                    left = "" if self._child.status is not None else f" (SIGKILL in {span(kill_at - now)})"
                    say(f"lease {lease.name!r} is lost: {reason}; stopping COMMAND{left}")
                    self._stop(kill_at)
                    return reason
                pause = min(stop_at - now, renew_every)
            if self._child.status is not None:
                return None
            if resumed:  # after the check of the lease: if it was lost meanwhile, COMMAND must not continue
                self._child.give_terminal()
                self._child.signal(signal.SIGCONT)
            self._sleep(pause)

    def _stopped_with(self, stop: int | None, lease: Lease | None) -> bool:
        """Stop ``run`` too when the terminal has stopped COMMAND. True when ``run`` was stopped and continued."""
        if stop not in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            return False  # COMMAND alone was stopped, with SIGSTOP: keep holding the lease for it
        if not (self._child.on_terminal or self._suspended):
            return False
        self._suspended = False
        driver = None if lease is None else registry_of(lease).driver
        with getattr(driver, "at_rest", nullcontext)():  # a process stopped in a write could block all others
            self._child.stop_with_it()
        return True

    def _stop(self, kill_at: float) -> None:
        """Stop COMMAND and everything else in its process group: SIGTERM now, SIGKILL at ``kill_at``."""
        child, told = self._child, False
        child.signal(signal.SIGTERM)
        child.signal(signal.SIGCONT)  # a stopped process handles SIGTERM only when it is continued
        while True:
            child.look()
            now = clock.now()
            # (The kernel cannot have reused the group's id already: ids would have to wrap around between two checks.)
            left = child.signal(0)
            if child.out_of_reach and not told:
                told = True
                say(f"COMMAND {_ANOTHER_USER}: it may still run when another holder has the lease")
            if child.status is not None and not left:
                return
            if now >= kill_at + _UNKILLABLE and (child.status is not None or child.out_of_reach):
                self.runs_on = child.out_of_reach
                return
            if now >= kill_at:
                child.signal(signal.SIGKILL)
            self._sleep(_LOOK_EVERY if child.status is not None else max(_LOOK_EVERY, kill_at - now))

    def _sleep(self, seconds: float | None) -> None:
        """Wait for a signal or a wake-up; then pass on the signals that came."""
        readable(self._signals.fd, within=None if seconds is None else max(0.0, seconds))
        for number in self._signals.take():
            if number == signal.SIGCONT:
                self._child.give_terminal()
            self._suspended = self._suspended or number == signal.SIGTSTP
            self._child.signal(number)
            if self._child.out_of_reach and number in ENDING:
                say(f"{signal.Signals(number).name} was not passed on: COMMAND {_ANOTHER_USER}")
