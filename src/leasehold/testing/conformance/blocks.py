"""What a block and a decorated call do on every store: a loss is loud, names come from arguments, busy calls skip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ...core.lease import current
from ...errors import AcquireTimeout, LeaseLost
from ..handles import eventually
from ..scene import Scene
from ..store import THREADS


@pytest.mark.parametrize("on_lost", [None, "log"])
def test_block_of_a_broken_lease_ends_with_lease_lost_unless_that_is_only_logged(
    scene: Scene, on_lost: str | None
) -> None:
    """Reference, on_lost: LeaseLost comes out of the block by default; the name is free then."""
    locks, operator = scene.connect(ttl=30), scene.connect(ttl=30)
    lock = locks.lock(scene.name(), renew_every=0.5, max_renew_failures=1000, on_lost=on_lost)
    job = lock.block(lambda lease: lease.lost_reason is not None)
    eventually(lambda: job.lease is not None)
    assert operator.break_lease(lock.real.name)
    error = job.error()
    if on_lost == "log":
        assert error is None
    else:
        assert isinstance(error, LeaseLost)
        assert "broken" in error.reason
    operator.lock(lock.real.name).acquire(30).release()


def test_block_of_an_expired_lease_ends_with_lease_lost(scene: Scene) -> None:
    """Reference, on_lost: the same when renewal stopped."""
    error = scene.connect().lock(scene.name(), renew=False).block(lambda lease: not lease.valid).error()
    assert isinstance(error, LeaseLost)


def test_decorated_call_takes_its_name_from_the_arguments_or_is_skipped(scene: Scene) -> None:
    """Reference, decorators: ``{field}``, if_busy; A6, A7: a skipped run says so."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    name = scene.name()
    events: list[Any] = []
    locks.on_event(events.append)
    skipping = decorated(scene, locks.real.lock(name + ":{customer}", if_busy="skip"))
    raising = decorated(scene, locks.real.lock(name + ":{customer}", if_busy="raise"))
    held = other.lock(f"{name}:1").acquire()
    assert skipping(1) is None
    with pytest.raises(AcquireTimeout):
        raising(1)
    assert skipping(2) == raising(2) == f"{name}:2"
    held.release()
    assert skipping(1) == raising(1) == f"{name}:1"
    eventually(lambda: [event.name for event in events if event.type == "skipped"] == [f"{name}:1"])
    assert scene.held(f"{name}:1") == []


def decorated(scene: Scene, lock: Any) -> Callable[[int], Any]:
    """A call that returns the name under which it ran."""

    def work(customer: int) -> str:
        return current().name

    async def work_in_task(customer: int) -> str:
        return current().name

    call = lock(work if scene.side == THREADS else work_in_task)
    return lambda customer: scene.api.call(call, customer)
