"""Guards that make the *resource* refuse a holder that was overtaken.

A lease tells its holder in time when it is lost, but a holder that is paused between its last look and its write cannot
be told. What helps is the fencing token: whoever takes the lease later has a greater one. The resource keeps the
greatest token that it has seen, in the same step as the write, and refuses a lower one. How it does that depends on the
resource: :mod:`leasehold.fence.sql`, :mod:`leasehold.fence.mongo`, :mod:`leasehold.fence.redis`, and :func:`swap` for
anything else that can compare and set.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from ..errors import LeaseLost
from ..lease import BaseLease
from ..typed import Any, Protocol

__all__ = ["AsyncCell", "Cell", "StaleToken", "part", "swap", "swap_async", "token"]


class StaleToken(LeaseLost):
    """The resource has refused a write: a later holder has been there. ``token`` is the one that was too old."""

    def __init__(self, name: str, token: int) -> None:
        super().__init__(name, f"the resource has refused its token {token}: a later holder has been there")
        self.token = token


def token(lease: BaseLease) -> int:
    """The token of a lease that is still held, and held by nobody else. Raises LeaseLost, ValueError.

    Holders of a semaphore, and readers, are several at a time: a later one's token must not shut out an earlier one.
    """
    if not isinstance(lease, BaseLease):
        hint = ": a term's is term.lease" if hasattr(lease, "lease") else ""
        raise TypeError(f"a fence takes a lease, not {type(lease).__name__}{hint}")
    spec = lease._spec
    if len(_parts(lease)) > 1:
        raise ValueError(f"lease {lease.name!r} is of several names, each with its token: use fence.part(lease, name)")
    if spec.weight < spec.limit:
        raise ValueError(f"lease {lease.name!r} is not exclusive ({spec.shape}): there may be others beside it")
    lease.check()
    return lease.token


def part(lease: BaseLease, name: str) -> BaseLease:
    """Of a lease of several names (``all_of``), the one of this name."""
    for each in _parts(lease):
        if each.name == name:
            return each
    raise ValueError(f"{name!r} is none of the names of lease {lease.name!r}")


def _parts(lease: BaseLease) -> Sequence[BaseLease]:
    from ..joint import Joint

    return lease._parts if isinstance(lease, Joint) else (lease,)


class Cell(Protocol):
    """Something that is read with a version and written only if that is still the same: an object with an ETag, a row
    of DynamoDB, a key of Consul, a file under a lock."""

    def read(self) -> tuple[Any, int, Any]:
        """Version, greatest token so far (0 if none), value."""

    def write(self, version: Any, token: int, value: Any) -> bool:
        """Store token and value if the version is still this one. False when it is not."""


class AsyncCell(Protocol):
    """As :class:`Cell`, awaited."""

    async def read(self) -> tuple[Any, int, Any]: ...

    async def write(self, version: Any, token: int, value: Any) -> bool: ...


def swap(cell: Cell, lease: BaseLease, change: Callable[[Any], Any]) -> Any:
    """Store ``change(value)`` and return it, unless a later holder has been there: then StaleToken."""
    steps = _swap(lease, change)
    try:
        call = next(steps)
        while True:
            call = steps.send(getattr(cell, call[0])(*call[1:]))
    except StopIteration as stop:
        return stop.value


async def swap_async(cell: AsyncCell, lease: BaseLease, change: Callable[[Any], Any]) -> Any:
    """As :func:`swap`, for a cell that is awaited."""
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
