"""``locks.once`` for threads. See :mod:`leasehold.kinds.once.outcomes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...contract.kinds import OnceContract
from ...core import checks
from ...core.options import Spec
from ...core.timing import Duration
from ...threads.lease import Lease
from ...threads.lock import Lock
from ...threads.runner import ThreadRegistry
from . import outcomes


class Once(OnceContract):
    """Work of one name and version that is done once.

    Made by :meth:`Locks.once`. ::

        outcome = locks.once("migrate", version=42).run(lambda: "migrated")
        outcome.check()
    """

    def __init__(self, core: ThreadRegistry, spec: Spec, policy: outcomes.Policy, locks: object) -> None:
        self._core = core
        self._lock = Lock(core, spec, locks)
        self._policy = policy

    @property
    def name(self) -> str:
        return self._lock.name

    def run(self, function: Callable[[], Any], timeout: Duration | None = None) -> outcomes.Outcome:
        checks.callback(function, "once", tasks=False)
        core = self._core
        wanted = self._policy._replace(ends=outcomes.ends_at(core, timeout))
        while True:
            outcome = core.drive(outcomes.find_recorded(core, self.name, wanted))
            if outcome is not None and wanted.is_final(outcome):
                return outcome
            lease = self._take(wanted)
            if lease is None:
                return core.drive(outcomes.running(core, self.name, wanted))
            with lease:
                outcome = core.drive(outcomes.find_recorded(core, self.name, wanted))
                while not wanted.is_final(outcome) and lease.valid:
                    with outcomes.MeasuredCall() as call:
                        call.result = function()
                    checks.has_run(call.result, "the function of once", generators=True)
                    outcome = core.drive(outcomes.record(core, lease, wanted, call.ran))
                    if outcome is None or wanted.retry_by == "any":
                        break
            if outcome is not None and wanted.is_final(outcome):
                return outcome

    def outcome(self) -> outcomes.Outcome | None:
        return self._core.drive(outcomes.outcomes(self._core, self.name)).get(self._policy.version)

    def forget(self, every_version: bool = False) -> bool:
        while True:
            with self._lock.acquire() as lease:
                version = None if every_version else self._policy.version
                forgotten = self._core.drive(outcomes.forget(self._core, lease, version))
            if forgotten is not None:
                return forgotten

    def _take(self, wanted: outcomes.Policy) -> Lease | None:
        if not wanted.wait:
            return self._lock.try_acquire()
        return self._lock.acquire(None if wanted.ends is None else max(0.0, wanted.ends - self._core.now()))

    def __repr__(self) -> str:
        return f"<leasehold.Once {self.name!r} version {self._policy.version}>"
