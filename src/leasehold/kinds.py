"""Kinds of lock beside the plain one, for threads. :mod:`leasehold.aio_kinds` is the twin."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from . import engine, joint
from .lease import BaseLease
from .lock import Lease, Lock, Locks
from .protocol import run_steps
from .spec import Spec
from .typed import TYPE_CHECKING, Any


class RWLock:
    """Many readers or one writer. Each reader is a lease of its own; whoever comes after a waiting writer waits too."""

    def __init__(self, locks: Locks, name: str, options: dict[str, Any]) -> None:
        self._locks = locks
        self._options = options
        self.name = locks._core.rw_spec(name, False, options).name

    def read(self, **options: Any) -> Lock:
        """For a reader. Options are those of :meth:`Locks.lock`, over those given to ``rwlock``."""
        return Lock(self._locks, self._locks._core.rw_spec(self.name, False, {**self._options, **options}))

    def write(self, **options: Any) -> Lock:
        """For a writer. ``lease.downgrade()`` makes a reader of it."""
        return Lock(self._locks, self._locks._core.rw_spec(self.name, True, {**self._options, **options}))

    def __repr__(self) -> str:
        return f"<leasehold.RWLock {self.name!r}>"


class JointLease(joint.Joint, Lease):
    """See :class:`leasehold.joint.Joint`."""

    _parts: tuple[Lease, ...]

    def __init__(self, core: Any, spec: Spec, parts: Any) -> None:
        self._stand_on(core, spec, tuple(parts))

    def renew(self, ttl: float | None = None) -> None:
        for part in self._parts:
            part.renew(ttl)

    def transfer(self) -> str:
        raise ValueError("only a plain lease can be handed over, not one of several names or of a re-entrant lock")


class AllOf(Lock):
    """Several names, all or none."""

    def __init__(self, locks: Locks, specs: list[Spec]) -> None:
        super().__init__(locks, specs[0]._replace(name=", ".join(spec.name for spec in specs), shape="all_of"))
        self._specs = [spec._replace(on_lost=None) for spec in specs]

    if TYPE_CHECKING:  # what they give is more than a lock's: it has ``tokens``

        def acquire(self, timeout: float | None = None, *, cancel: threading.Event | None = None) -> AllLease: ...

        def try_acquire(self, timeout: float = 0) -> AllLease | None: ...

        def __enter__(self) -> AllLease: ...

    def locked(self) -> bool:
        """Whether anybody holds any of the names now."""
        return any(self._locks.inspect(spec.name) is not None for spec in self._specs)

    def _take(self, timeout: float | None, cancel: threading.Event | None) -> AllLease:
        def handle(request: Any) -> Any:
            if isinstance(request, BaseLease):
                return self._core.drive(engine.discard(self._core, request))
            wanted, left = request
            if isinstance(wanted, list):
                return self._core.acquire_all(Lease, wanted, left, cancel)
            return self._core.acquire(Lease, wanted, left, cancel)

        steps = joint.gather(self._core, self._specs, timeout)
        try:
            parts = run_steps(steps, handle)
            return AllLease(self._core, self._spec, parts)
        finally:
            steps.close()


def release_all(leases: Sequence[Lease]) -> bool:
    """Release each, whatever becomes of the others."""
    steps = joint.give_all(leases)
    try:
        return run_steps(steps, lambda lease: lease.release())
    finally:
        steps.close()


class AllLease(joint.BaseAll, JointLease):
    """See :class:`leasehold.joint.BaseAll`."""

    def release(self) -> bool:
        try:
            held = self._leave_parts()
            return held is not None and self._gave_back(held, release_all(self._parts))
        except BaseException:
            self._drop_parts()
            raise


class RLock(Lock):
    """A lock that its holder, this thread and no other, can enter again. One token; freed by the last release."""

    def _take(self, timeout: float | None, cancel: threading.Event | None) -> Entry:
        key = (self._core.generation, self.name, threading.current_thread())
        holds = self._locks._holds
        try:
            hold = joint.enter_again(holds, key)
            if hold is None:
                root = self._core.acquire(Lease, self._spec._replace(on_lost=None), timeout, cancel)
                hold = joint.Hold(root, holds, key)
            return Entry(self._core, self._spec, hold)
        except BaseException:
            joint.not_entered(holds, key)
            raise

    def __repr__(self) -> str:
        return f"<leasehold.RLock {self.name!r}>"


class Entry(joint.BaseEntry, JointLease):
    """See :class:`leasehold.joint.BaseEntry`."""

    def __init__(self, core: Any, spec: Spec, hold: joint.Hold) -> None:
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
