"""What tests ask of the inside of a ``Locks`` or a ``Lease``. All else is seen from outside.

A judge needs to know more than a holder is told: the deadline of a lease that has ended, when its grant was requested,
what a lease of several names consists of. Tests that break the network need the store and the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.lease import BaseLease, own_state_of, registry_of, state_of
from ..core.options import Spec
from ..core.registry import Registry
from ..kinds.joint.joint_lease import parts_of
from ..kinds.joint.reentrant import BaseRLockLease


def core(of: Any) -> Registry:
    """The registry of a ``Locks``, or of the one that a lease came from."""
    if isinstance(of, BaseLease):
        return registry_of(of)
    found: Registry = of._core
    return found


def parts(lease: BaseLease) -> Sequence[BaseLease]:
    """What a lease consists of: itself; those of several names; the one that it has entered again."""
    return parts_of(lease)


def reentrant(lease: object) -> bool:
    """Whether it is an entry of an ``rlock``."""
    return isinstance(lease, BaseRLockLease)


def spec(of: Any) -> Spec:
    """The options of a lock, or of the lock that a lease came from."""
    if isinstance(of, BaseLease):
        return state_of(of).spec
    found: Spec = of._spec
    return found


def acquired(lease: BaseLease) -> float:
    """When the call was sent that granted it, on the local clock."""
    return own_state_of(lease).acquired


def deadline(lease: BaseLease) -> float:
    """The deadline of its last term, on the local clock, also when it has ended."""
    return state_of(lease).deadline


def end(lease: BaseLease, reason: str) -> None:
    """The lease is lost now, for its holder; the store knows nothing of it."""
    core(lease).end(own_state_of(lease), reason)
