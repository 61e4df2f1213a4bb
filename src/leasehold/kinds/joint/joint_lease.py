"""Leases that stand on others: an entry into a re-entrant lock on the one that is held, ``all_of`` on one per name.

They are computed from their parts and have nothing of their own in the store.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from ...core.claim import OFFERED, RELEASED, TAKEN, Claim
from ...core.lease import BaseLease
from ...core.options import Spec
from ...core.registry import Registry


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
