"""``all_of`` and ``rlock`` for asyncio. :mod:`leasehold.kinds.joint.threads` is the twin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from ...contract.lock import RLockContract
from ...core import release
from ...core.lease import BaseLease, own_state_of
from ...core.options import Spec
from ...core.protocol import await_steps
from ...core.registry import in_order
from ...core.timing import Duration
from ...tasks.lease import Lease
from ...tasks.lock import Acquiring, Lock
from ...tasks.runner import TaskRegistry
from . import all_of, joint_lease, reentrant


class JointLease(joint_lease.Joint, Lease):
    """See :class:`leasehold.kinds.joint.joint_lease.Joint`."""

    _parts: tuple[Lease, ...]

    def __init__(self, core: Any, spec: Spec, parts: Any) -> None:
        parts = tuple(parts)
        super().__init__(core, joint_lease.JointState(core, spec, [own_state_of(part) for part in parts]))
        self._stand_on(parts)

    async def renew(self, ttl: Duration | None = None) -> None:
        for part in self._parts:
            await part.renew(ttl)

    async def transfer(self) -> str:
        raise ValueError("transfer() supports only plain leases, not those of all_of and rlock")


class AllOf(Lock):
    """A lock of several names, acquired all or none. Made by :meth:`Locks.all_of`.

    Its lease has ``tokens``, the token of each name, and is lost when the lease of one name is lost. ::

        async with locks.all_of("account:1", "account:2") as lease:
            lease.tokens["account:1"]
    """

    def __init__(self, core: TaskRegistry, specs: list[Spec], locks: object) -> None:
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

        def acquire(self, timeout: Duration | None = None) -> Acquiring[AllLease]: ...

        def try_acquire(self, timeout: Duration = 0) -> Coroutine[Any, Any, AllLease | None]: ...

        async def __aenter__(self) -> AllLease: ...

    async def locked(self) -> bool:
        for spec in self._specs:
            spec.check_named()
        return any([await self._core.call(self._core.store.inspect(spec.name)) for spec in self._specs])

    async def _take(self, timeout: Duration | None) -> AllLease:
        def handle(request: Any) -> Awaitable[Any]:
            if isinstance(request, BaseLease):
                return self._core.drive(release.discard(self._core, own_state_of(request)))
            wanted, left = request
            if isinstance(wanted, list):
                return self._core.acquire_all(Lease, wanted, left)
            return self._core.acquire(Lease, wanted, left)

        parts = await await_steps(all_of.gather(self._core, self._specs, timeout), handle)
        return AllLease(self._core, self._spec, parts)


def release_all(leases: Sequence[Lease]) -> Coroutine[Any, Any, bool]:
    """Release each lease. One lease's failure does not stop the others; it is raised at the end."""
    return await_steps(all_of.release_each(leases), lambda lease: lease.release())


class AllLease(all_of.BaseAll, JointLease):
    """See :class:`leasehold.kinds.joint.all_of.BaseAll`."""

    async def release(self) -> bool:
        try:
            held = self._leave_parts()
            return held is not None and self._gave_back(held, await release_all(self._parts))
        except BaseException:
            self._drop_parts()
            raise


class RLock(RLockContract, Lock):
    """A re-entrant lock: the task that holds it can acquire it again. Made by :meth:`Locks.rlock`.

    All entries share one token; the last release frees the name. ::

        lock = locks.rlock("tree")
        async with lock, lock as lease:
            lease.check()
    """

    def __init__(self, core: TaskRegistry, spec: Spec, holds: reentrant.Holds, locks: object) -> None:
        super().__init__(core, spec, locks)
        self._holds = holds

    def _named(self, names: Sequence[str]) -> RLock:
        return RLock(self._core, self._spec._replace(name=names[0], name_of=None), self._holds, self._locks)

    def _take(self, timeout: Duration | None) -> Coroutine[Any, Any, RLockLease]:
        # The task is read here, not in the coroutine: asyncio.wait_for of Python 3.11 awaits it in a task of its own.
        return self._enter(timeout, (self._core.generation, self.name, asyncio.current_task()))

    async def _enter(self, timeout: Duration | None, key: Any) -> RLockLease:
        holds = self._holds
        try:
            hold = reentrant.enter_again(holds, key)
            if hold is None:
                root = await self._core.acquire(Lease, self._spec._replace(on_lost=None), timeout)
                hold = reentrant.Hold(root, holds, key)
            return RLockLease(self._core, self._spec, hold)
        except BaseException:
            reentrant.not_entered(holds, key)
            raise

    @property
    def hold_count(self) -> int:
        return reentrant.count(self._holds, (self._core.generation, self.name, asyncio.current_task()))

    def __repr__(self) -> str:
        return f"<leasehold.aio.RLock {self.name!r}>"


class RLockLease(reentrant.BaseRLockLease, JointLease):
    """See :class:`leasehold.kinds.joint.reentrant.BaseRLockLease`."""

    def __init__(self, core: Any, spec: Spec, hold: reentrant.Hold) -> None:
        super().__init__(core, spec, (hold.root,))
        self._enter_hold(hold)

    async def release(self) -> bool:
        try:
            held = self._leave_parts()
            if held is not None and self._hold.leave(id(self)):
                return self._gave_back(held, await self._parts[0].release())
            return bool(held)
        except BaseException:
            self._drop_parts()
            raise
