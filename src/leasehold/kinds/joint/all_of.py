"""``all_of``: all of several names, or none.

What is done with the leases one after the other is written here once, as generators; the shells carry it out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, TypeAlias

from ...core import release, timing
from ...core.lease import BaseLease, own_state_of, registry_of
from ...core.options import Spec
from ...core.registry import Registry
from ...core.timing import Duration
from ...errors import AcquireTimeout, StoreError
from .joint_lease import Joint

Gather: TypeAlias = Generator["tuple[Spec | list[Spec], float | None] | BaseLease", Any, "list[BaseLease]"]


def gather(core: Registry, specs: Iterable[Spec], timeout: Duration | None) -> Gather:
    """Acquire all in one step, if the store can do that and all are free; otherwise one after the other, each with the
    time that is left. Yields what to acquire, or a lease to discard.

    All or none: unless it succeeds, the leases that were acquired are released.
    """
    timeout = None if timeout is None else timing.patience(timeout)
    ends = None if timeout is None else core.now() + timeout
    specs = list(specs)
    at_once = len(specs) > 1

    def time_left() -> float | None:
        return None if ends is None else max(0.0, ends - core.now())

    while True:
        acquired: list[BaseLease] = []
        try:
            if at_once:
                together: list[BaseLease] | None = yield specs, time_left()
                if together is not None:
                    return together
            for spec in specs:
                lease: BaseLease = yield spec, time_left()
                acquired.append(lease)
            lost = next((lease for lease in acquired if not lease.valid), None)  # lost while waiting for another name
            if lost is None:
                taken, acquired = acquired, []
                return taken
            if ends is not None and core.now() >= ends:
                raise AcquireTimeout(
                    f"timed out: {lost.name!r} was lost while waiting for the others: {lost.lost_reason}"
                )
            while acquired:
                yield acquired.pop()
        except Exception:
            while acquired:
                yield acquired.pop()
            raise
        finally:  # cancelled or interrupted: leave the release to the keeper
            for lease in acquired:
                if (owed := release.disown(core, own_state_of(lease))) is not None:
                    core.give_back_soon(owed)


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


def release_each(parts: Sequence[BaseLease]) -> Generator[Any, bool, bool]:
    """Yields each lease to release. One lease's error does not stop the others; it is raised at the end."""
    released = True
    failed: StoreError | None = None
    left = list(parts)
    try:
        while left:
            try:
                released = (yield left[-1]) and released
            except StoreError as error:
                failed = error
            left.pop()
    finally:  # cancelled or interrupted: leave the rest to the keeper
        for part in left:
            release.drop(registry_of(part), own_state_of(part))
    if failed is not None:
        raise failed
    return released
