"""Leases that stand on others: an entry into a re-entrant lock on the one that is held, ``all_of`` on one per name.

They are computed from their parts and have nothing of their own in the store. What is done with the parts one after the
other is written here once, as generators; the shells carry it out.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Iterable, MutableMapping, Sequence

from . import engine, policy
from .core import Core
from .errors import AcquireTimeout, StoreError
from .lease import OFFERED, RELEASED, TAKEN, BaseLease, Claim
from .spec import Spec
from .typed import Any, TypeAlias

Gather: TypeAlias = Generator["tuple[Spec | list[Spec], float | None] | BaseLease", Any, "list[BaseLease]"]


class Joint(BaseLease):
    """A lease that can be trusted while all of its parts can. The shells' own ``Lease`` is mixed in below it."""

    _parts: Sequence[BaseLease]
    _over: str | None
    _told: bool
    _hear: Any

    def _stand_on(self, core: Core, spec: Spec, parts: Sequence[BaseLease]) -> None:
        self._core = core
        self._spec = spec
        self._owner = core.owner
        self._born = core.generation
        self._callbacks = [spec.on_lost] if callable(spec.on_lost) else []
        self._lost = None
        self._given = True  # nothing of its own is to be given back
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
        """One is lost, so all are: they are renewed no longer, and given back when this one is released."""
        with self._core.mutex:
            if self._told or self._over is not None:
                return
            self._told = True
        for other in self._parts:
            if other is not part:
                self._core.lose(other, f"{part.name!r}, which was held with it, was lost: {part.lost_reason}")
        self._announce()

    def _leave_parts(self) -> bool | None:
        """End this one because it is released: whether it was trusted until now, or None when it has ended before."""
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
            self._announce()  # a part was lost, and that has not got here yet
        return reason is None

    def _drop_parts(self) -> None:
        """Its release was interrupted: nobody releases the rest any more, so the keeper has to."""
        for part in self._parts:
            part._drop()

    def _gave_back(self, held: bool, given: bool) -> bool:
        """Whether its release is one of what was ours: ``given`` is what that of its parts came to. If it was trusted
        until then, and the store said that a part had been another's already, it was lost."""
        if held and any(part._end == TAKEN for part in self._parts):
            with self._core.mutex:
                self._over = TAKEN
            self._announce()
        return held and given


# All of several names.


def gather(core: Core, specs: Iterable[Spec], timeout: float | None) -> Gather:
    """Take all in one step, where the store can and they are free; else one lease after the other, each with the time
    that is left. Yields what to acquire, or a lease to discard.

    All or none: whatever ends this but success, those that were had are given back.
    """
    timeout = None if timeout is None else policy.patience(timeout)
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
            lost = next((lease for lease in had if not lease.valid), None)  # while the others were waited for
            if lost is None:
                taken, had = had, []
                return taken
            if ends is not None and core.now() >= ends:
                raise AcquireTimeout(f"{lost.name!r} was lost while the others were waited for: {lost.lost_reason}")
            while had:
                yield had.pop()
        except Exception:
            while had:
                yield had.pop()
            raise
        finally:  # cancelled or interrupted: there is no time for more than to have it done
            for lease in had:
                core.settle(engine.disown(core, lease))


class BaseAll(Joint):
    """A lease of several names. Lost when one of them is."""

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each name."""
        return {part.name: part.token for part in self._parts}

    @property
    def token(self) -> int:
        if len(self._parts) > 1:
            raise AttributeError("a lease of several names has a token for each: tokens[name]")
        return self._parts[0].token

    def __repr__(self) -> str:
        return f"<Lease of {self.name} {'held' if self.valid else self.lost_reason or 'released'}>"


def give_all(parts: Sequence[BaseLease]) -> Generator[Any, bool, bool]:
    """Yields each lease to be released; an error of one does not stop the others."""
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
    finally:  # cancelled or interrupted: nobody releases the rest any more, so the keeper has to
        for part in left:
            part._drop()
    if failed is not None:
        raise failed
    return given


# Re-entrant.


ENTERING = 0
"""Stands among the entries for one that is about to be made, so that nobody takes another for the last meanwhile."""


class Hold:
    """One holding of a re-entrant lock: the lease, and the entries that were not released, by their ``id``.

    The gate is re-entrant because destructors leave too, in the middle of anything."""

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
        """Begin another entry. False when the last one has just been released."""
        with self.gate:
            self.entries.add(ENTERING)  # before the look: a destructor may come in between
            if self.over:
                self.entries.discard(ENTERING)
            return not self.over

    def leave(self, entry: int) -> bool:
        """The entry is no more. True when it was the last."""
        if self.root._born != self.root._core.generation:
            return False  # a forked child's: nothing is its own, and the gate may be shut for ever
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
    """The holding that this thread or task is in already; raises LeaseLost when it can no longer be trusted.

    Whatever comes in the way of the entry, the caller says so: ``not_entered``."""
    hold = holds.get(key)
    if hold is None or not hold.enter():
        return None
    hold.root.check()
    return hold


def not_entered(holds: Holds, key: Any) -> None:
    """An entry of this thread or task was not made after all."""
    hold = holds.get(key)
    if hold is not None and hold.leave(ENTERING):  # the others have gone meanwhile, or there were none
        hold.root._drop()


class BaseEntry(Joint):
    """One entry into a re-entrant lock: a handle of its own on the lease that is held."""

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
        # As that of any lease: nobody can release this entry any more. One that was released has left before.
        hold = getattr(self, "_hold", None)
        if hold is not None and hold.leave(id(self)):
            hold.root._drop()
