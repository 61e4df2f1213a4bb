"""``locks.once`` for threads. See :mod:`leasehold.kinds.once.outcomes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ...contract.kinds import OnceContract
from ...core import checks
from ...core.log import WARNING, log
from ...core.options import Spec
from ...core.timing import Duration
from ...errors import LeaseLost, ShuttingDown, StoreError
from ...threads.lease import Lease
from ...threads.lock import Lock
from ...threads.runner import ThreadRegistry
from . import archive, outcomes
from .call import MeasuredCall
from .outcome import Outcome, result_of

T = TypeVar("T")


class Once(OnceContract):
    """Work of one name and version that is done once.

    Made by :meth:`Locks.once`. ::

        outcome = locks.once("migrate", version=42).run(lambda: "migrated")
    """

    def __init__(self, core: ThreadRegistry, spec: Spec, policy: outcomes.Policy, locks: object) -> None:
        self._core = core
        self._lock = Lock(core, spec, locks)
        self._spec, self._locks = spec, locks
        self._policy = policy

    @property
    def name(self) -> str:
        return self._lock.name

    def run(
        self, function: Callable[[], T], timeout: Duration | None = None, *, check: bool | None = None
    ) -> Outcome[T]:
        checks.callback(function, "once", tasks=False)
        core, error = self._core, None
        check = self._policy.check if check is None else check
        wanted = self._policy._replace(ends=outcomes.ends_at(core, timeout))
        lost = ""  # why the lease was lost under the work: the function is not called again
        while True:
            unrecorded = False
            known = core.drive(outcomes.look(core, self.name, wanted))
            if not known.final:
                lease = self._take(wanted)
                if lease is None:
                    return result_of(core.drive(outcomes.running(core, self.name, known.wanted)), None, check)
                try:
                    with lease:
                        known = self._turn(lease, known.wanted)
                        if lost and not known.final:
                            raise LeaseLost(self.name, lost)
                        unrecorded = not known.final and lease.valid
                        if unrecorded:
                            known, error = self._work(lease, function, known)
                            unrecorded = False
                        self._archive(lease, known.shard)
                except LeaseLost as loss:
                    if lost:
                        raise
                    if unrecorded:
                        found = core.drive(outcomes.after_loss(core, self.name, known.wanted))
                        if found is None:
                            raise
                        known, lost = found, loss.reason  # another may do the work now: wait in line for its outcome
            if known.final and known.outcome is not None:
                return result_of(known.outcome, error, check)

    def _work(
        self, lease: Lease, function: Callable[[], T], known: outcomes.Known
    ) -> tuple[outcomes.Known, Exception | None]:
        """Call the function until its outcome is final, or another process may do so. Raises LeaseLost if nothing could
        be recorded of a call."""
        while True:
            with MeasuredCall() as call:
                call.result = function()
            checks.has_run(call.result, "the function of once", generators=True)
            known = self._core.drive(outcomes.record(self._core, lease, known.wanted, call.ran))
            if known.outcome is None:
                raise LeaseLost(self.name, lease.lost_reason or outcomes.NOT_RECORDED) from call.ran.error
            if known.final or known.wanted.retry_by == "any" or not lease.valid:
                return known, call.ran.error

    def _turn(self, lease: Lease, wanted: outcomes.Policy) -> outcomes.Known:
        """What is recorded, under the lease; with room for another version."""
        while True:
            known = self._core.drive(outcomes.turn(self._core, lease, wanted))
            if not known.full:
                return known
            if not self._archive(lease, known.shard):
                raise outcomes.no_room(self.name)

    def _archive(self, lease: Lease, number: int | None) -> bool:
        """Move marks to a shard. Not urgent: whatever goes wrong, they stay, and the next caller tries again."""
        if number is None or not lease.valid:
            return False
        try:
            held = self._shard(number).try_acquire()
            if held is None:
                return False
            try:
                return self._core.drive(archive.move(self._core, lease, held, number))
            finally:
                held.release()
        except (StoreError, ShuttingDown) as error:
            log(WARNING, "old versions of %r stay in its note for now: %s", self.name, error, event="not_moved")
            return False

    def outcome(self) -> Outcome[Any] | None:
        return self._core.drive(outcomes.recorded(self._core, self.name, self._policy))

    def history(self) -> list[Outcome[Any]]:
        return self._core.drive(outcomes.history(self._core, self.name))

    def forget(self, version: str | int | None = None, *, every_version: bool = False) -> bool:
        core, found = self._core, False
        one = None if version is None else outcomes.version_text(version)
        if one is None and not every_version:
            one = core.drive(outcomes.present(core, self.name, self._policy))
        while True:
            try:
                with self._lock.acquire() as lease:
                    for number in core.drive(archive.shards(core, self.name, one)):
                        with self._shard(number).acquire() as held:
                            erased = core.drive(archive.erase(core, held, self.name, number, one))
                        if erased is None:
                            raise LeaseLost(held.name, "its shard was lost")
                        found = found or erased
                    forgotten = core.drive(outcomes.forget(core, lease, one))
            except LeaseLost:
                continue
            if forgotten is not None:
                return found or forgotten

    def _take(self, wanted: outcomes.Policy) -> Lease | None:
        if not wanted.wait:
            return self._lock.try_acquire()
        return self._lock.acquire(None if wanted.ends is None else max(0.0, wanted.ends - self._core.now()))

    def _shard(self, number: int) -> Lock:
        return Lock(self._core, archive.spec_of(self._spec, number), self._locks)

    def __repr__(self) -> str:
        return f"<leasehold.Once {self.name!r} {self._policy}>"
