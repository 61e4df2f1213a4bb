"""Leases made of other leases: an entry into a re-entrant lock has one part, the lease that is held; ``all_of`` has one
part for each name.

Their state is computed from their parts; they have no record of their own in the store. Operations on all parts are
written here once, as generators, which the shells for threads and tasks carry out.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Iterable, MutableMapping, Sequence

from .core import release, timing
from .core.lease import OFFERED, RELEASED, TAKEN, BaseLease, Claim
from .core.options import Spec
from .core.registry import Registry
from .core.typed import Any, TypeAlias
from .errors import AcquireTimeout, StoreError

Gather: TypeAlias = Generator["tuple[Spec | list[Spec], float | None] | BaseLease", Any, "list[BaseLease]"]


class Joint(BaseLease):
    """A lease that can be trusted while all its parts can. The subclasses of the shells also derive from ``Lease``."""

    _parts: Sequence[BaseLease]
    _over: str | None
    _told: bool
    _hear: Any

    def _stand_on(self, core: Registry, spec: Spec, parts: Sequence[BaseLease]) -> None:
        self._core = core
        self._spec = spec
        self._owner = core.owner
        self._born = core.generation
        self._callbacks = [spec.on_lost] if callable(spec.on_lost) else []
        self._lost = None
        self._given = True  # it has no record of its own to release
        self._promised = False
        self._parts = parts
        self._over = None
        self._told = False
        me = weakref.ref(self)

        def hear(part: BaseLease) -> None:
            joint = me()
            if joint is not None:
                joint._part_lost(part)

        self._hear = hear
        for part in parts:
            part.on_lost(hear)

    @property
    def _deadline(self) -> float:  # type: ignore[override]
        return min(part._deadline for part in self._parts)

    @property
    def _end(self) -> str | None:  # type: ignore[override]
        if self._over is not None:
            return self._over
        return next((part._end or OFFERED for part in self._parts if part._end or part._promised), None)

    @property
    def _claim(self) -> Claim:  # type: ignore[override]
        return self._parts[0]._claim

    @property
    def ttl(self) -> float:
        return min(part.ttl for part in self._parts)

    def beat(self) -> None:
        for part in self._parts:
            part.beat()

    def _why_expired(self, now: float) -> str:
        return min(self._parts, key=lambda part: part._deadline)._why_expired(now)

    def _part_lost(self, part: BaseLease) -> None:
        """One part is lost, so all are: the others are no longer renewed, and are released with this lease."""
        with self._core.mutex:
            if self._told or self._over is not None:
                return
            self._told = True
        for other in self._parts:
            if other is not part:
                self._core.lose(other, f"{part.name!r}, held together with it, was lost: {part.lost_reason}")
        self._announce()

    def _leave_parts(self) -> bool | None:
        """End this lease because it is released. Returns whether it was trusted until now; None if it ended before."""
        reason = self.lost_reason
        with self._core.mutex:
            if self._over is not None:
                return None
            self._over = reason or RELEASED
            for part in self._parts:
                if self._hear in part._callbacks:
                    part._callbacks.remove(self._hear)
            untold = reason not in (None, OFFERED) and not self._told
            self._told = self._told or untold
        if untold:
            self._announce()  # a part was lost, and its callback has not run yet
        return reason is None

    def _drop_parts(self) -> None:
        """The release was interrupted: have the keeper release the other parts."""
        for part in self._parts:
            part._drop()

    def _gave_back(self, held: bool, given: bool) -> bool:
        """The result of ``release()``. ``held``: the lease was trusted until now; ``given``: all parts were released.
        If it was trusted, but the store reports that a part belonged to another holder already, it was lost."""
        if held and any(part._end == TAKEN for part in self._parts):
            with self._core.mutex:
                self._over = TAKEN
            self._announce()
        return held and given


# All of several names.


def gather(core: Registry, specs: Iterable[Spec], timeout: float | None) -> Gather:
    """Acquire all in one step, if the store can do that and all are free; otherwise one after the other, each with the
    time that is left. Yields what to acquire, or a lease to discard.

    All or none: unless it succeeds, the leases that were acquired are released.
    """
    timeout = None if timeout is None else timing.patience(timeout)
    ends = None if timeout is None else core.now() + timeout
    specs = list(specs)
    at_once = len(specs) > 1 and hasattr(core.store, "acquire_all")

    def left() -> float | None:
        return None if ends is None else max(0.0, ends - core.now())

    while True:
        had: list[BaseLease] = []
        try:
            if at_once:
                together: list[BaseLease] | None = yield specs, left()
                if together is not None:
                    return together
            for spec in specs:
                lease: BaseLease = yield spec, left()
                had.append(lease)
            lost = next((lease for lease in had if not lease.valid), None)  # lost while waiting for another name
            if lost is None:
                taken, had = had, []
                return taken
            if ends is not None and core.now() >= ends:
                raise AcquireTimeout(
                    f"timed out: {lost.name!r} was lost while waiting for the others: {lost.lost_reason}"
                )
            while had:
                yield had.pop()
        except Exception:
            while had:
                yield had.pop()
            raise
        finally:  # cancelled or interrupted: leave the release to the keeper
            for lease in had:
                core.settle(release.disown(core, lease))


class BaseAll(Joint):
    """A lease of several names. It is lost when the lease of one name is lost."""

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each name."""
        return {part.name: part.token for part in self._parts}

    @property
    def token(self) -> int:
        if len(self._parts) > 1:
            raise AttributeError("a lease of several names has one token for each name: use lease.tokens[name]")
        return self._parts[0].token

    def __repr__(self) -> str:
        return f"<Lease of {self.name} {'held' if self.valid else self.lost_reason or 'released'}>"


def give_all(parts: Sequence[BaseLease]) -> Generator[Any, bool, bool]:
    """Yields each lease to release. One lease's error does not stop the others; it is raised at the end."""
    given = True
    failed: StoreError | None = None
    left = list(parts)
    try:
        while left:
            try:
                given = (yield left[-1]) and given
            except StoreError as error:
                failed = error
            left.pop()
    finally:  # cancelled or interrupted: leave the rest to the keeper
        for part in left:
            part._drop()
    if failed is not None:
        raise failed
    return given


# Re-entrant.


ENTERING = 0
"""A placeholder among the entries for one that is being made, so that no other entry counts as the last meanwhile."""


class Hold:
    """One holding of a re-entrant lock: the lease, and the open entries by their ``id``.

    The gate is re-entrant: a destructor may call ``leave`` while the same thread is in the gate."""

    __slots__ = ("__weakref__", "entries", "gate", "holds", "key", "over", "root")

    def __init__(self, root: BaseLease, holds: Holds, key: Any) -> None:
        self.root = root
        self.holds = holds
        self.key = key
        self.gate = threading.RLock()
        self.over = False
        self.entries: set[int] = {ENTERING}
        holds[key] = self

    def enter(self) -> bool:
        """Begin another entry. False if the last entry has just been released."""
        with self.gate:
            self.entries.add(ENTERING)  # before the check of ``over``: a destructor may run in between
            if self.over:
                self.entries.discard(ENTERING)
            return not self.over

    def leave(self, entry: int) -> bool:
        """Remove an entry. True if it was the last."""
        if self.root._born != self.root._core.generation:
            return False  # in a forked child: it owns nothing, and the gate may stay locked for ever
        with self.gate:
            self.entries.discard(entry)
            if self.entries or self.over:
                return False
            self.over = True
            if self.holds.get(self.key) is self:
                self.holds.pop(self.key, None)
            return True


Holds: TypeAlias = MutableMapping[Any, Hold]


def enter_again(holds: Holds, key: Any) -> Hold | None:
    """The holding that this thread or task has already, or None. Raises LeaseLost if it can no longer be trusted.

    If the entry is then not made, the caller must call ``not_entered``."""
    hold = holds.get(key)
    if hold is None or not hold.enter():
        return None
    hold.root.check()
    return hold


def not_entered(holds: Holds, key: Any) -> None:
    """The entry of this thread or task was not made: remove its placeholder."""
    hold = holds.get(key)
    if hold is not None and hold.leave(ENTERING):  # there is no other entry
        hold.root._drop()


class BaseEntry(Joint):
    """One entry into a re-entrant lock: a handle on the lease that is held."""

    _hold: Hold

    def _enter_hold(self, hold: Hold) -> None:
        self._hold = hold
        hold.entries.add(id(self))
        hold.entries.discard(ENTERING)

    def _drop_parts(self) -> None:
        self._hold.leave(id(self))
        if self._hold.over:
            self._hold.root._drop()

    def __del__(self) -> None:
        # As for any lease: a collected entry cannot be released any more. ``leave`` does nothing if it was released.
        hold = getattr(self, "_hold", None)
        if hold is not None and hold.leave(id(self)):
            hold.root._drop()
