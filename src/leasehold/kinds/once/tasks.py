"""``locks.once`` for asyncio. See :mod:`leasehold.kinds.once.outcomes`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...contract.kinds import OnceContract
from ...core import checks
from ...core.options import Spec
from ...core.timing import Duration
from ...errors import LeaseLost
from ...tasks.lease import Lease
from ...tasks.lock import Lock
from ...tasks.runner import TaskRegistry
from . import outcomes


class Once(OnceContract):
    """Work of one name and version that is done once.

    Made by :meth:`Locks.once`. ::

        outcome = await locks.once("migrate", version=42).run(lambda: "migrated")
        outcome.check()
    """

    def __init__(self, core: TaskRegistry, spec: Spec, policy: outcomes.Policy, locks: object) -> None:
        self._core = core
        self._lock = Lock(core, spec, locks)
        self._policy = policy

    @property
    def name(self) -> str:
        return self._lock.name

    async def run(self, function: Callable[[], Any], timeout: Duration | None = None) -> outcomes.Outcome:
        checks.callback(function, "once", tasks=True)
        core = self._core
        core.bind()
        wanted = self._policy._replace(ends=outcomes.ends_at(core, timeout))
        while True:
            outcome = await core.drive(outcomes.find_recorded(core, self.name, wanted))
            if outcome is not None and wanted.is_final(outcome):
                return outcome
            lease = await self._take(wanted)
            if lease is None:
                return await core.drive(outcomes.running(core, self.name, wanted))
            try:
                outcome = await self._work(lease, function, wanted)
            except LeaseLost:
                outcome = None
            if outcome is not None and wanted.is_final(outcome):
                return outcome

    async def _work(
        self, lease: Lease, function: Callable[[], Any], wanted: outcomes.Policy
    ) -> outcomes.Outcome | None:
        core = self._core
        async with lease:
            outcome = await core.drive(outcomes.find_recorded(core, self.name, wanted))
            while not wanted.is_final(outcome) and lease.valid:
                with outcomes.MeasuredCall() as call:
                    result = function()
                    call.result = await result if inspect.isawaitable(result) else result
                checks.has_run(call.result, "the function of once", tasks=True, generators=True)
                outcome = await core.drive(outcomes.record(core, lease, wanted, call.ran))
                if outcome is None or wanted.retry_by == "any":
                    break
        return outcome

    async def outcome(self) -> outcomes.Outcome | None:
        self._core.bind()
        return (await self._core.drive(outcomes.outcomes(self._core, self.name))).get(self._policy.version)

    async def forget(self, every_version: bool = False) -> bool:
        while True:
            lease = await self._lock.acquire()
            try:
                async with lease:
                    version = None if every_version else self._policy.version
                    forgotten = await self._core.drive(outcomes.forget(self._core, lease, version))
            except LeaseLost:
                forgotten = None
            if forgotten is not None:
                return forgotten

    async def _take(self, wanted: outcomes.Policy) -> Lease | None:
        if not wanted.wait:
            return await self._lock.try_acquire()
        return await self._lock.acquire(None if wanted.ends is None else max(0.0, wanted.ends - self._core.now()))

    def __repr__(self) -> str:
        return f"<leasehold.aio.Once {self.name!r} version {self._policy.version}>"
