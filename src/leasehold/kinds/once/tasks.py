"""``locks.once`` for asyncio. See :mod:`leasehold.kinds.once.outcomes`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from ...contract.kinds import OnceContract
from ...core import checks
from ...core.log import WARNING, log
from ...core.options import Spec
from ...core.timing import Duration
from ...errors import LeaseLost, ShuttingDown, StoreError
from ...tasks.lease import Lease
from ...tasks.lock import Lock
from ...tasks.runner import TaskRegistry
from . import archive, outcomes
from .call import MeasuredCall
from .outcome import Outcome, result_of

T = TypeVar("T")


class Once(OnceContract):
    """Work of one name and version that is done once.

    Made by :meth:`Locks.once`. ::

        outcome = await locks.once("migrate", version=42).run(lambda: "migrated")
    """

    def __init__(self, core: TaskRegistry, spec: Spec, policy: outcomes.Policy, locks: object) -> None:
        self._core = core
        self._lock = Lock(core, spec, locks)
        self._spec, self._locks = spec, locks
        self._policy = policy

    @property
    def name(self) -> str:
        return self._lock.name

    @overload
    async def run(
        self, function: Callable[[], Awaitable[T]], timeout: Duration | None = None, *, check: bool | None = None
    ) -> Outcome[T]: ...

    @overload
    async def run(
        self, function: Callable[[], T], timeout: Duration | None = None, *, check: bool | None = None
    ) -> Outcome[T]: ...

    async def run(
        self, function: Callable[[], Any], timeout: Duration | None = None, *, check: bool | None = None
    ) -> Outcome[Any]:
        checks.callback(function, "once", tasks=True)
        core, error = self._core, None
        core.bind()
        check = self._policy.check if check is None else check
        wanted = self._policy._replace(ends=outcomes.ends_at(core, timeout))
        lost = ""  # why the lease was lost under the work: the function is not called again
        while True:
            unrecorded = False
            known = await core.drive(outcomes.look(core, self.name, wanted))
            if not known.final:
                lease = await self._take(wanted)
                if lease is None:
                    return result_of(await core.drive(outcomes.running(core, self.name, known.wanted)), None, check)
                try:
                    async with lease:
                        known = await self._turn(lease, known.wanted)
                        if lost and not known.final:
                            raise LeaseLost(self.name, lost)
                        unrecorded = not known.final and lease.valid
                        if unrecorded:
                            known, error = await self._work(lease, function, known)
                            unrecorded = False
                        await self._archive(lease, known.shard)
                except LeaseLost as loss:
                    if lost:
                        raise
                    if unrecorded:
                        found = await core.drive(outcomes.after_loss(core, self.name, known.wanted))
                        if found is None:
                            raise
                        known, lost = found, loss.reason  # another may do the work now: wait in line for its outcome
            if known.final and known.outcome is not None:
                return result_of(known.outcome, error, check)

    async def _work(
        self, lease: Lease, function: Callable[[], Any], known: outcomes.Known
    ) -> tuple[outcomes.Known, Exception | None]:
        """Call the function until its outcome is final, or another process may do so. Raises LeaseLost if nothing could
        be recorded of a call."""
        while True:
            with MeasuredCall() as call:
                result = function()
                call.result = await result if inspect.isawaitable(result) else result
            checks.has_run(call.result, "the function of once", tasks=True, generators=True)
            known = await self._core.drive(outcomes.record(self._core, lease, known.wanted, call.ran))
            if known.outcome is None:
                raise LeaseLost(self.name, lease.lost_reason or outcomes.NOT_RECORDED) from call.ran.error
            if known.final or known.wanted.retry_by == "any" or not lease.valid:
                return known, call.ran.error

    async def _turn(self, lease: Lease, wanted: outcomes.Policy) -> outcomes.Known:
        """What is recorded, under the lease; with room for another version."""
        while True:
            known = await self._core.drive(outcomes.turn(self._core, lease, wanted))
            if not known.full:
                return known
            if not await self._archive(lease, known.shard):
                raise outcomes.no_room(self.name)

    async def _archive(self, lease: Lease, number: int | None) -> bool:
        """Move marks to a shard. Not urgent: whatever goes wrong, they stay, and the next caller tries again."""
        if number is None or not lease.valid:
            return False
        try:
            held = await self._shard(number).try_acquire()
            if held is None:
                return False
            try:
                return await self._core.drive(archive.move(self._core, lease, held, number))
            finally:
                await held.release()
        except (StoreError, ShuttingDown) as error:
            log(WARNING, "old versions of %r stay in its note for now: %s", self.name, error, event="not_moved")
            return False

    async def outcome(self) -> Outcome[Any] | None:
        self._core.bind()
        return await self._core.drive(outcomes.recorded(self._core, self.name, self._policy))

    async def history(self) -> list[Outcome[Any]]:
        self._core.bind()
        return await self._core.drive(outcomes.history(self._core, self.name))

    async def forget(self, version: str | int | None = None, *, every_version: bool = False) -> bool:
        core, found = self._core, False
        core.bind()
        one = None if version is None else outcomes.version_text(version)
        if one is None and not every_version:
            one = await core.drive(outcomes.present(core, self.name, self._policy))
        while True:
            lease = await self._lock.acquire()
            try:
                async with lease:
                    for number in await core.drive(archive.shards(core, self.name, one)):
                        async with self._shard(number).acquire() as held:
                            erased = await core.drive(archive.erase(core, held, self.name, number, one))
                        if erased is None:
                            raise LeaseLost(held.name, "its shard was lost")
                        found = found or erased
                    forgotten = await core.drive(outcomes.forget(core, lease, one))
            except LeaseLost:
                continue
            if forgotten is not None:
                return found or forgotten

    async def _take(self, wanted: outcomes.Policy) -> Lease | None:
        if not wanted.wait:
            return await self._lock.try_acquire()
        return await self._lock.acquire(None if wanted.ends is None else max(0.0, wanted.ends - self._core.now()))

    def _shard(self, number: int) -> Lock:
        return Lock(self._core, archive.spec_of(self._spec, number), self._locks)

    def __repr__(self) -> str:
        return f"<leasehold.aio.Once {self.name!r} {self._policy}>"
