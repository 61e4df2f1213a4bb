"""Guards that make the *resource* refuse the writes of a holder that was overtaken.

A lease notifies its holder when it is lost, but a holder that is paused between its last check and its write does not
notice. The fencing token helps: every later holder has a greater token. The resource stores the greatest token that it
has seen, in the same step as the write, and refuses a lower one. The guard depends on the resource:
:mod:`leasehold.fence.sql`, :mod:`leasehold.fence.mongo`, :mod:`leasehold.fence.redis`, and :func:`swap` for anything
else that can compare and set.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

from ..core.lease import BaseLease, state_of
from ..errors import LeaseLost
from ..kinds.joint.joint_lease import parts_of

__all__ = ["AsyncCell", "Cell", "StaleToken", "part", "swap", "swap_async", "token"]


class StaleToken(LeaseLost):
    """The resource refused a write: it has seen the token of a later holder.

    Fields:
        name: the lease's name.
        token: the refused token.
    """

    def __init__(self, name: str, token: int) -> None:
        super().__init__(name, f"the resource refused its token {token}: it has seen a later holder's token")
        self.token = token


def token(lease: BaseLease) -> int:
    """The token of an exclusive lease that is still held.

    A semaphore, or a read/write lock with readers, has several holders at a time. A later holder's token must not shut
    out an earlier holder.

    Args:
        lease: the lease, of threads or asyncio.

    Raises:
        LeaseLost: the lease can no longer be trusted.
        ValueError: the lease is not exclusive, or has several names.
        TypeError: ``lease`` is not a lease.

    Example::

        with locks.lock("account:1") as lease:
            fence.token(lease)
    """
    if not isinstance(lease, BaseLease):
        hint = ": use term.lease" if hasattr(lease, "lease") else ""
        raise TypeError(f"a fence takes a lease, not {type(lease).__name__}{hint}")
    spec = state_of(lease).spec
    if len(parts_of(lease)) > 1:
        raise ValueError(
            f"lease {lease.name!r} has several names, each with a token of its own: use fence.part(lease, name)"
        )
    if spec.weight < spec.limit:
        raise ValueError(f"lease {lease.name!r} is not exclusive ({spec.shape}): other holders may hold it too")
    lease.check()
    return lease.token


def part(lease: BaseLease, name: str) -> BaseLease:
    """The lease of one name, out of a lease of several names (``all_of``).

    Args:
        lease: the lease of several names.
        name: one of its names.

    Raises:
        ValueError: the lease has no such name.

    Example::

        with locks.all_of("account:1", "account:2") as lease:
            fence.token(fence.part(lease, "account:1"))
    """
    for each in parts_of(lease):
        if each.name == name:
            return each
    raise ValueError(f"lease {lease.name!r} has no name {name!r}")


class Cell(Protocol):
    """What :func:`swap` writes to: it is read with a version, and written only if the version has not changed.

    Examples are an object with an ETag, a row of DynamoDB, a key of Consul, a file under a lock."""

    def read(self) -> tuple[Any, int, Any]:
        """Return the version, the greatest token so far (0 if there is none), and the value."""

    def write(self, version: Any, token: int, value: Any) -> bool:
        """Store ``token`` and ``value`` if the version is still ``version``. Return False if it is not."""


class AsyncCell(Protocol):
    """As :class:`Cell`, awaited."""

    async def read(self) -> tuple[Any, int, Any]:
        """Return the version, the greatest token so far (0 if there is none), and the value."""

    async def write(self, version: Any, token: int, value: Any) -> bool:
        """Store ``token`` and ``value`` if the version is still ``version``. Return False if it is not."""


def swap(cell: Cell, lease: BaseLease, change: Callable[[Any], Any]) -> Any:
    """Store ``change(value)`` with the lease's token, and return it.

    Args:
        cell: reads and writes the value.
        lease: the lease that guards it.
        change: called with the value, returns the new value. If another writer was faster, it is called again with
            that writer's value.

    Raises:
        StaleToken: a later holder has written.
        LeaseLost: the lease can no longer be trusted.
        ValueError: the lease is not exclusive.

    Example::

        class Memory:
            state = (0, 0, 100)  # version, token, value

            def read(self):
                return self.state

            def write(self, version, token, value):
                if version != self.state[0]:
                    return False
                self.state = (version + 1, token, value)
                return True

        with locks.lock("account:1") as lease:
            fence.swap(Memory(), lease, lambda balance: balance - 50)
    """
    steps = _swap(lease, change)
    try:
        call = next(steps)
        while True:
            call = steps.send(getattr(cell, call[0])(*call[1:]))
    except StopIteration as stop:
        return stop.value


async def swap_async(cell: AsyncCell, lease: BaseLease, change: Callable[[Any], Any]) -> Any:
    """As :func:`swap`, awaited. ``cell`` is an :class:`AsyncCell`; ``lease`` and ``change`` are as there."""
    steps = _swap(lease, change)
    try:
        call = next(steps)
        while True:
            call = steps.send(await getattr(cell, call[0])(*call[1:]))
    except StopIteration as stop:
        return stop.value


def _swap(lease: BaseLease, change: Callable[[Any], Any]) -> Generator[tuple[Any, ...], Any, Any]:
    while True:
        own = token(lease)
        version, seen, value = yield ("read",)
        if seen > own:
            raise StaleToken(lease.name, own)
        value = change(value)
        if (yield ("write", version, own, value)):
            return value
