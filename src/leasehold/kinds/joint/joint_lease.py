"""Leases that stand on others: an entry into a re-entrant lock on the one that is held, ``all_of`` on one per name.

They are computed from their parts and have nothing of their own in the store.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from ...core.claim import OFFERED, RELEASED, TAKEN, Claim
from ...core.lease import BaseLease, own_state_of, remove_callback
from ...core.options import Spec
from ...core.registry import Registry
from ...core.release import drop, report_expiry
from ...core.state import DONE, BaseState, LeaseState


class JointState(BaseState):
    """Computed from the states of the parts."""

    __slots__ = ("ended", "parts")
    parts: Sequence[LeaseState]

    def __init__(self, core: Registry, spec: Spec, parts: Sequence[LeaseState]) -> None:
        super().__init__(core.generation, core.owner, spec)
        self.parts = parts
        self.ended: str | None = None
        """How the whole ended, as far as its own release, or a loss found then, has ended it."""

    @property
    def claim(self) -> Claim:
        return self.parts[0].claim

    @property
    def ttl(self) -> float:
        return min(part.ttl for part in self.parts)

    @property
    def deadline(self) -> float:
        return min(part.deadline for part in self.parts)

    @property
    def end(self) -> str | None:
        if self.ended is not None:
            return self.ended
        return next((part.end or OFFERED for part in self.parts if part.end or part.offered), None)

    @property
    def offered(self) -> bool:
        return False

    @property
    def released_by(self) -> object:
        return DONE  # it has no record of its own to release

    def beat(self, now: float) -> None:
        for part in self.parts:
            part.beat(now)

    def why_expired(self, now: float) -> str:
        return min(self.parts, key=lambda part: part.deadline).why_expired(now)


class Joint(BaseLease):
    """A lease that can be trusted while all its parts can. The subclasses of the shells also derive from ``Lease``."""

    _state: JointState
    _parts: Sequence[BaseLease]
    _announced: bool
    _on_part_lost: Callable[[BaseLease], None]

    def _stand_on(self, parts: Sequence[BaseLease]) -> None:
        self._parts = parts
        self._announced = False
        me = weakref.ref(self)

        def part_lost(part: BaseLease) -> None:
            joint = me()
            if joint is not None:
                joint._part_lost(part)

        self._on_part_lost = part_lost
        for part in parts:
            part.on_lost(part_lost)

    def _part_lost(self, part: BaseLease) -> None:
        """One part is lost, so all are: the others are no longer renewed, and are released with this lease."""
        with self._core.mutex:
            if self._announced or self._state.ended is not None:
                return
            self._announced = True
        for other in self._parts:
            if other is not part:
                self._core.lose(
                    own_state_of(other), f"{part.name!r}, held together with it, was lost: {part.lost_reason}"
                )
        self._announce()

    def _leave_parts(self) -> bool | None:
        """End this lease because it is released. Returns whether it was trusted until now; None if it ended before."""
        reason = self.lost_reason
        with self._core.mutex:
            if self._state.ended is not None:
                return None
            self._state.ended = reason or RELEASED
            for part in self._parts:
                remove_callback(part, self._on_part_lost)
            unannounced = reason not in (None, OFFERED) and not self._announced
            self._announced = self._announced or unannounced
        if unannounced:
            self._announce()  # a part was lost, and its callback has not run yet
        return reason is None

    def _leave_to_keeper(self) -> None:
        try:
            self._leave_parts()
            for part in self._state.parts:
                report_expiry(self._core, part)
        finally:
            self._drop_parts()

    def _drop_parts(self) -> None:
        """The release was interrupted: have the keeper release the other parts."""
        for part in self._state.parts:
            drop(self._core, part)

    def _gave_back(self, held: bool, given: bool) -> bool:
        """The result of ``release()``. ``held``: the lease was trusted until now; ``given``: all parts were released.
        If it was trusted, but the store reports that a part belonged to another holder already, it was lost."""
        if held and any(part.end == TAKEN for part in self._state.parts):
            with self._core.mutex:
                self._state.ended = TAKEN
            self._announce()
        return held and given


def parts_of(lease: BaseLease) -> Sequence[BaseLease]:
    """The leases that a lease stands on; of a plain lease, itself."""
    return lease._parts if isinstance(lease, Joint) else (lease,)
