"""What only separate processes show: killed, paused, forked, interrupted, ended."""

from __future__ import annotations

import os
import signal
import time

import pytest

from ..api import PATIENCE
from ..handles import eventually, in_time
from ..processes import Process
from ..scene import Scene
from .fixtures import needs


@needs("shared")
@pytest.mark.slow
def test_a_killed_holder_is_replaced(scene: Scene) -> None:
    """Promise 5, L1; A3, C2: SIGKILL; the waiter acquires within ttl + 1 s, and tokens rise."""
    locks = scene.connect(ttl=30)

    def kill() -> float:
        name = scene.name()
        holder = scene.process()
        held = holder.do("acquire", name=name, ttl=scene.steady)
        waiter = locks.lock(name).start()
        eventually(lambda: scene.waiters(name) or waiter.done() or not scene.store.fair)
        time.sleep(1.2 * scene.steady)
        early = waiter.done()
        assert not early or not holder.do("state", name=name)["valid"], "its holder lives and renews"
        begun = time.monotonic()
        holder.kill()
        taken = waiter.lease()
        took = time.monotonic() - begun
        assert taken.token > held["token"]
        assert taken.release()
        return float("inf") if early else took  # it stalled, and lost its lease before it was killed

    in_time(kill, scene.steady + 1 + scene.store.slack)


@needs("shared")
@pytest.mark.slow
def test_a_killed_waiter_holds_up_nobody(scene: Scene) -> None:
    """Promise 5, L2: a killed waiter delays the waiters behind it by 1 s at most."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)

    def kill() -> float:
        name = scene.name()
        lease = locks.lock(name).acquire()
        dead = scene.process()
        dead.do("begin", name=name, ttl=30)
        scene.until_waiting(name)
        waiter = other.lock(name).start()
        scene.until_waiting(name, 2)
        dead.kill()
        begun = time.monotonic()
        lease.release()
        taken = waiter.lease()
        took = time.monotonic() - begun
        assert taken.release() or taken.ran_out()
        return took

    in_time(kill, 1 + scene.store.slack)


@needs("shared")
@pytest.mark.slow
def test_a_paused_holder_knows_at_once_that_it_was_replaced(scene: Scene) -> None:
    """Promises 1, 3, 6; S2, S3: SIGSTOP past the ttl, SIGCONT: not valid, lost, its release does no harm."""
    locks = scene.connect(ttl=30)
    holder = scene.process()
    for _ in range(5):  # a machine may stall
        name = scene.name()
        held = holder.do("acquire", name=name, ttl=scene.steady)
        if held["valid"]:
            break
    assert held["valid"]
    holder.pause()
    try:
        taken = locks.lock(name).acquire(scene.steady + PATIENCE)
    finally:
        holder.resume()
    state = holder.do("state", name=name)
    assert not state["valid"]
    assert state["lost"]
    assert state["reason"]
    assert state["remaining"] == 0
    assert taken.token > held["token"]
    assert holder.do("release", name=name) is False
    assert [each.token for each in scene.held(name)] == [taken.token]
    taken.renew()
    assert taken.release()


@needs("shared", "push")
@pytest.mark.slow
def test_a_release_is_pushed_to_another_process(scene: Scene) -> None:
    """Promise 5, L2: from process to process, both ways, with no poll in between."""
    locks = scene.connect(ttl=30)
    name = scene.name()
    other = scene.process()

    def there_and_back() -> float:
        lease = locks.lock(name).acquire()
        other.do("begin", name=name, ttl=30, renew=False)  # without renewal it claims a whole ttl, not a first term
        scene.until_waiting(name)
        time.sleep(0.3)
        begun = time.monotonic()
        lease.release()
        there = other.do("finish", name=name)
        took = time.monotonic() - begun
        assert there["token"] > lease.token
        waiter = locks.lock(name).start()
        scene.until_waiting(name)
        time.sleep(0.3)
        begun = time.monotonic()
        assert other.do("release", name=name) is True
        back = waiter.lease()
        took = max(took, time.monotonic() - begun)
        assert back.token > there["token"]
        back.release()
        return took

    in_time(there_and_back, 2)


@needs("shared", "push")
@pytest.mark.slow
def test_a_break_is_told_to_another_process(scene: Scene) -> None:
    """Reference, break_lease: a holder in another process is notified."""
    locks = scene.connect(ttl=30)
    name = scene.name()
    holder = scene.process()
    holder.do("acquire", name=name, ttl=90)
    assert locks.break_lease(name)
    eventually(lambda: not holder.do("state", name=name)["valid"], 15, "long before it is renewed")
    assert "broken" in holder.do("state", name=name)["reason"]
    assert locks.lock(name).try_acquire() is None
    assert holder.do("release", name=name) is False
    locks.lock(name).acquire(10).release()


@needs("shared")
@pytest.mark.slow
def test_what_an_ending_process_holds_is_given_back(scene: Scene) -> None:
    """Reference, connect: at interpreter exit held leases are released within 1 s."""

    def end() -> float:
        name = scene.name()
        holder = scene.process()
        holder.do("acquire", name=name, ttl=30)
        assert scene.held(name)
        holder.forget_to_close()
        return _given_back(scene, holder, name)

    in_time(end, 1 + scene.store.slack)


def _given_back(scene: Scene, process: Process, name: str) -> float:
    """End a process that holds a name; return how long after that the name is free."""
    process.close()
    assert not process.killed, "it ended by itself"
    begun = time.monotonic()
    while scene.held(name):
        if time.monotonic() - begun > 3 + scene.store.slack:  # it was not: it may have stood still for all of its time
            scene.connect().break_lease(name, force=True)
            return float("inf")
        time.sleep(0.005)
    return time.monotonic() - begun


@needs("shared")
@pytest.mark.slow
def test_what_a_process_has_forgotten_is_given_back(scene: Scene) -> None:
    """Promise 4, L5: lease, Locks and (asyncio.run) loop are all collected; the lease is released at exit."""

    def end() -> float:
        name = scene.name()
        process = scene.process()
        process.forget_to_close()
        process.do("leak", name=name)
        return _given_back(scene, process, name)

    in_time(end, 1 + scene.store.slack)


@needs("shared")
@pytest.mark.slow
def test_a_forked_child_owns_nothing(scene: Scene) -> None:
    """Promise 4, L5; reference, connect: the child owns none of the parent's leases, and can use the same Locks."""
    name, other = scene.name(), scene.name()
    found = scene.process().do("fork", name=name, other=other, ttl=30)
    child = found["child"]
    assert "error" not in child, child
    assert child["valid"] is False
    assert "parent" in child["lost"]
    assert child["released"] is False, "it was not the child's to release"
    assert child["used"] is True
    assert child["owner"] != found["owner"]
    assert found["valid"] is True
    assert found["released"] is True, "the parent still had it"
    assert not scene.held(name)
    assert not scene.held(other)


@needs("shared")
@pytest.mark.slow
def test_a_forked_child_outlives_its_parent(scene: Scene) -> None:
    """Promise 1 over a fork: a child's lease excludes all others, also after the parent closed its Locks."""
    locks = scene.connect(ttl=30)
    first, second = scene.name(), scene.name()
    process = scene.process()
    process.do("outlive", first=first, second=second)
    for name in (first, second):
        assert locks.lock(name).try_acquire() is None, "the child holds it"
        assert len(scene.held(name)) == 1
    assert process.do("outlived") == "++"
    for name in (first, second):
        locks.lock(name).acquire(PATIENCE).release()


@needs("shared")
@pytest.mark.slow
def test_ctrl_c_in_a_waiting_acquire_leaves_nothing(scene: Scene) -> None:
    """Promise 4, L5: after a KeyboardInterrupt a waiter neither holds nor waits."""
    locks = scene.connect(ttl=30)
    name = scene.name()
    lease = locks.lock(name).acquire()
    process = scene.process()
    process.send("interrupt", name=name)
    assert process.answer() == "asking"
    scene.until_waiting(name)
    os.kill(process.pid, signal.SIGINT)
    assert process.answer() == "KeyboardInterrupt"
    eventually(lambda: scene.waiters(name) == 0, 10, "long before its place runs out")
    assert lease.valid
    assert lease.release()
    assert not scene.held(name)
