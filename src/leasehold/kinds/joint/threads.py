"""``all_of`` and ``rlock`` for threads. :mod:`leasehold.kinds.joint.tasks` is the twin."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...contract.lock import RLockContract
from ...core import release
from ...core.lease import BaseLease, own_state_of
from ...core.options import Spec
from ...core.protocol import run_steps
from ...core.registry import in_order
from ...core.timing import Duration
from ...threads.lease import Lease
from ...threads.lock import Lock
from ...threads.runner import ThreadRegistry
from . import all_of, joint_lease, reentrant


class JointLease(joint_lease.Joint, Lease):
    """See :class:`leasehold.kinds.joint.joint_lease.Joint`."""

    _parts: tuple[Lease, ...]

    def __init__(self, core: Any, spec: Spec, parts: Any) -> None:
        parts = tuple(parts)
        super().__init__(core, joint_lease.JointState(core, spec, [own_state_of(part) for part in parts]))
        self._stand_on(parts)

    def renew(self, ttl: Duration | None = None) -> None:
        for part in self._parts:
            part.renew(ttl)

    def transfer(self) -> str:
        raise ValueError("transfer() supports only plain leases, not those of all_of and rlock")


class AllOf(Lock):
    """A lock of several names, acquired all or none. Made by :meth:`Locks.all_of`.

    Its lease has ``tokens``, the token of each name, and is lost when the lease of one name is lost. ::

        with locks.all_of("account:1", "account:2") as lease:
            lease.tokens["account:1"]
    """

    def __init__(self, core: ThreadRegistry, specs: list[Spec], locks: object) -> None:
        names = ", ".join(spec.name for spec in specs)
        super().__init__(core, specs[0]._replace(name=names, shape="all_of"), locks)
        self._specs = [spec._replace(on_lost=None) for spec in specs]

    def _named(self, names: Sequence[str]) -> AllOf:
        on_lost = self._spec.on_lost
        specs = [
            spec._replace(name=name, name_of=None, on_lost=on_lost)
            for spec, name in zip(self._specs, names, strict=True)
        ]
        return AllOf(self._core, in_order(specs), self._locks)

    if TYPE_CHECKING:  # these return an AllLease, which has ``tokens``

        def acquire(self, timeout: Duration | None = None, *, cancel: threading.Event | None = None) -> AllLease: ...

        def try_acquire(self, timeout: Duration = 0, *, cancel: threading.Event | None = None) -> AllLease | None: ...

        def __enter__(self) -> AllLease: ...

    def locked(self) -> bool:
        for spec in self._specs:
            spec.check_named()
        return any(self._core.call(self._core.store.inspect(spec.name)) for spec in self._specs)

    def _take(self, timeout: Duration | None, cancel: threading.Event | None) -> AllLease:
        def handle(request: Any) -> Any:
            if isinstance(request, BaseLease):
                return self._core.drive(release.discard(self._core, own_state_of(request)))
            wanted, left = request
            if isinstance(wanted, list):
                return self._core.acquire_all(Lease, wanted, left, cancel)
            return self._core.acquire(Lease, wanted, left, cancel)

        steps = all_of.gather(self._core, self._specs, timeout)
        try:
            parts = run_steps(steps, handle)
            return AllLease(self._core, self._spec, parts)
        finally:
            steps.close()


def release_all(leases: Sequence[Lease]) -> bool:
    """Release each lease. One lease's failure does not stop the others; it is raised at the end."""
    steps = all_of.release_each(leases)
    try:
        return run_steps(steps, lambda lease: lease.release())
    finally:
        steps.close()


class AllLease(all_of.BaseAll, JointLease):
    """See :class:`leasehold.kinds.joint.all_of.BaseAll`."""

    def release(self) -> bool:
        try:
            held = self._leave_parts()
            return held is not None and self._gave_back(held, release_all(self._parts))
        except BaseException:
            self._drop_parts()
            raise


class RLock(RLockContract, Lock):
    """A re-entrant lock: the thread that holds it can acquire it again. Made by :meth:`Locks.rlock`.

    All entries share one token; the last release frees the name. ::

        lock = locks.rlock("tree")
        with lock, lock as lease:
            lease.check()
    """

    def __init__(self, core: ThreadRegistry, spec: Spec, holds: reentrant.Holds, locks: object) -> None:
        super().__init__(core, spec, locks)
        self._holds = holds

    def _named(self, names: Sequence[str]) -> RLock:
        return RLock(self._core, self._spec._replace(name=names[0], name_of=None), self._holds, self._locks)

    def _take(self, timeout: Duration | None, cancel: threading.Event | None) -> RLockLease:
        key = (self._core.generation, self.name, threading.current_thread())
        holds = self._holds
        try:
            hold = reentrant.enter_again(holds, key)
            if hold is None:
                root = self._core.acquire(Lease, self._spec._replace(on_lost=None), timeout, cancel)
                hold = reentrant.Hold(root, holds, key)
            return RLockLease(self._core, self._spec, hold)
        except BaseException:
            reentrant.not_entered(holds, key)
            raise

    @property
    def hold_count(self) -> int:
        return reentrant.count(self._holds, (self._core.generation, self.name, threading.current_thread()))

    def __repr__(self) -> str:
        return f"<leasehold.RLock {self.name!r}>"


class RLockLease(reentrant.BaseRLockLease, JointLease):
    """See :class:`leasehold.kinds.joint.reentrant.BaseRLockLease`."""

    def __init__(self, core: Any, spec: Spec, hold: reentrant.Hold) -> None:
        super().__init__(core, spec, (hold.root,))
        self._enter_hold(hold)

    def release(self) -> bool:
        try:
            held = self._leave_parts()
            if held is not None and self._hold.leave(id(self)):
                return self._gave_back(held, self._parts[0].release())
            return bool(held)
        except BaseException:
            self._drop_parts()
            raise
