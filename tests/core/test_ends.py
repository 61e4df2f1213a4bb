"""How leases, waits and Locks end when something comes in between: each of these was wrong once."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio, keeping, policy
from leasehold.effects import Run, Wait
from leasehold.errors import StoreNotReady, StoreUnavailable
from leasehold.testing.faults import install


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[leasehold.Locks]:
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as locks:
        yield locks


def eventually(what: Callable[[], object], within: float = 30.0) -> None:
    ends = time.monotonic() + within
    while not what():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.005)


def open_files() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass  # closed meanwhile, as that of the listing is
    return found


def in_child(work: Callable[[], object]) -> str:
    """What ``work`` returns in a forked child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, repr(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        result = file.read()
    os.waitpid(pid, 0)
    return result


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_child_does_not_acknowledge_the_break_of_its_parents_lease(locks: leasehold.Locks) -> None:
    lease = locks.lock("job", ttl=30).acquire()
    locks.break_lease("job")
    assert lease.lost.wait(30)
    assert in_child(lease.release) == "False"
    assert locks.lock("job").try_acquire() is None  # the parent's body has not ended yet
    lease.release()
    assert locks.lock("job").acquire(20).release()


def test_renewing_for_another_ttl_takes_its_margin_and_its_cadence(locks: leasehold.Locks) -> None:
    lease = locks.lock("job", ttl=30).acquire()
    lease.renew(3600)
    assert 3600 * 0.99 - 60 < lease.remaining <= 3600 * 0.99 - 0.05
    lease.renew(6)
    assert lease.remaining <= 6 * 0.99 - 0.05
    first = lease._deadline
    eventually(lambda: lease._deadline > first)  # at the new cadence, though the keeper had meant to sleep for long
    lease.check()
    lease.release()


def test_a_renewal_that_its_holder_asked_for_and_that_failed_is_tried_again_soon(locks: leasehold.Locks) -> None:
    lease = locks.lock("job", ttl=60).acquire()
    core: Any = locks._core
    eventually(lambda: core.soonest == float("inf"))  # the keeper has looked
    run, first = core.driver.run, lease._deadline

    def unheard(steps: Any, limit: float) -> Any:
        run(steps, limit)
        raise StoreUnavailable("lost")

    core.driver.run = unheard
    with pytest.raises(StoreUnavailable):
        lease.renew()
    core.driver.run = run
    eventually(lambda: lease._deadline > first, 10)  # the keeper had meant to sleep for 20 s
    assert lease.release()


class Failing:
    """Puts errors in front of a driver's calls: each is raised once, after the call was carried out or instead.

    Calls of this thread, not of the keeper, which tidies up at any time."""

    def __init__(self, driver: Any, *errors: tuple[str, Exception]) -> None:
        self.errors = list(errors)
        real, ours = driver.run, threading.current_thread()

        def run(steps: Any, limit: float) -> Any:
            fails = self.errors and threading.current_thread() is ours
            when, error = self.errors.pop(0) if fails else ("", None)
            if when == "instead":
                raise error  # type: ignore[misc]
            result = real(steps, limit)
            if when == "after":
                raise error  # type: ignore[misc]
            return result

        driver.run = run


@pytest.mark.parametrize("delays", [(0.3, 0.0), (0.2, 0.4)])
@pytest.mark.parametrize("first", ["user", "keeper"])
def test_a_chosen_ttl_stands_whatever_the_keeper_renews_meanwhile(first: str, delays: tuple[float, float]) -> None:
    with leasehold.connect("memory://chosen-ttl") as locks:
        faults = install(locks)
        lease = locks.lock("name", ttl=300).acquire()  # nothing but what is asked for below renews it
        core: Any = locks._core

        def user() -> None:
            threading.Thread(target=lease.renew, args=(600,)).start()

        def keeper() -> None:
            core.urgent.add(lease._claim.attempt)
            core.wake_keeper()

        for number, ask in enumerate([user, keeper] if first == "user" else [keeper, user]):
            faults.delay_answer(delays[number], "renew", times=1)
            ask()
            eventually(lambda asked=number + 1: faults.calls["renew"] == asked)
        eventually(lambda: core.renewals == 2)
        eventually(lambda: lease.ttl == 600)
        assert lease.remaining > 500


def test_not_ready_after_a_lost_answer_still_owes() -> None:  # promise 4
    with leasehold.connect("memory://ends-owes") as locks:
        Failing(
            locks._core.driver, ("after", StoreUnavailable("lost answer")), ("instead", StoreNotReady("read-only now"))
        )
        with pytest.raises(StoreNotReady):
            locks.lock("job").acquire(60)
        eventually(lambda: locks.inspect("job") is None)


@pytest.mark.slow
def test_what_is_not_renewed_does_not_become_so() -> None:
    with leasehold.connect("memory://ends-no-renewal", ttl=5) as locks:
        lease = locks.lock("job", renew=False).acquire()
        Failing(locks._core.driver, ("instead", StoreUnavailable("away")))
        with pytest.raises(StoreUnavailable):
            lease.renew()
        locks._core.rung(lease._claim.attempt)  # a stray ring
        assert lease.lost.wait(30)


def test_a_broken_lease_that_is_not_renewed_hears_of_it(locks: leasehold.Locks) -> None:
    lease = locks.lock("job", ttl=100, renew=False).acquire()
    locks.break_lease("job")
    assert lease.lost.wait(30)
    lease.release()


def test_a_break_right_after_the_grant_is_heard() -> None:
    with leasehold.connect("memory://ends-early-break", ttl=300) as locks:
        core = locks._core
        add, other = core.add, leasehold.connect("memory://ends-early-break")

        def slow_add(lease: Any) -> None:
            other.break_lease("job")  # the ring goes to the bell of a waiter that has just been served
            add(lease)

        core.add = slow_add  # type: ignore[method-assign]
        lease = locks.lock("job").acquire(5)
        assert lease.lost.wait(30)  # long before it is renewed
        lease.release()
        other.close()


def test_a_lease_that_was_another_s_at_release_is_lost() -> None:
    with leasehold.connect("memory://ends-belied") as locks:
        block = locks.lock("job", on_lost="raise")
        locks._core.rung = lambda *args: None  # type: ignore[method-assign]
        locks._core.driver.on_ring = lambda *args: None

        def work() -> None:
            with block:
                locks.break_lease("job", force=True)

        with pytest.raises(leasehold.LeaseLost, match="no longer ours"):
            work()


def test_an_interrupt_while_entering_leaves_nothing(locks: leasehold.Locks, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = locks.lock("job")

    def interrupted(self: leasehold.Lease) -> leasehold.Lease:
        raise KeyboardInterrupt

    monkeypatch.setattr(leasehold.Lease, "__enter__", interrupted)
    with pytest.raises(KeyboardInterrupt), lock:
        pass
    assert locks.inspect("job") is None
    assert not lock._open


def test_a_lost_lease_after_close_opens_nothing(tmp_path: Path) -> None:
    locks = leasehold.connect(f"sqlite:///{tmp_path}/leases.db")
    lease = locks.lock("job").acquire()
    locks.break_lease("job")
    assert lease.lost.wait(30)
    locks.close()
    assert not lease.release()
    del lease
    assert not [file for file in open_files() if str(tmp_path) in file]
    assert os.listdir(tmp_path / "leases.db-wake") == []
    with pytest.raises(leasehold.ShuttingDown):
        locks.inspect("job")


def test_close_that_was_interrupted_can_be_repeated(tmp_path: Path) -> None:
    locks = leasehold.connect(f"sqlite:///{tmp_path}/leases.db", ttl=60)
    kept = locks.lock("job").acquire()
    core = locks._core
    real = core.driver.run

    def interrupted(steps: Any, limit: float) -> Any:
        if threading.current_thread() is threading.main_thread():  # the keeper may tidy up meanwhile
            raise KeyboardInterrupt
        return real(steps, limit)

    core.driver.run = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        locks.close()
    core.driver.run = real  # type: ignore[method-assign]
    locks.close()
    assert not kept.valid
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as others:
        assert others.lock("job").try_acquire() is not None


def test_a_busy_file_does_not_hold_up_exit(tmp_path: Path) -> None:
    """Many Locks with leases on a file that somebody writes to for ever: gone within the second, give or take."""
    path = tmp_path / "leases.db"
    many = [leasehold.connect(f"sqlite:///{path}") for _ in range(40)]
    kept = [locks.lock(f"job {number}").acquire() for number, locks in enumerate(many)]
    stuck = sqlite3.connect(path, isolation_level=None)
    stuck.execute("BEGIN IMMEDIATE")
    from leasehold import core

    cores, started = [locks._core for locks in many], time.monotonic()
    ends = core.clock.now() + core.EXIT_LIMIT
    for each in cores:
        each.at_exit(max(0.0, ends - core.clock.now()))
    assert time.monotonic() - started < 25  # one after the other they would take 40
    stuck.close()
    assert all(not lease.valid for lease in kept)


def test_exit_does_not_wait_for_a_call_that_waits_for_a_busy_file(tmp_path: Path) -> None:
    """The keeper's tidying, say. It is in the middle of the store, where nobody else can be."""
    locks = leasehold.connect(f"sqlite:///{tmp_path}/leases.db")
    core = locks._core
    assert locks.inspect("job") is None
    inside = threading.Event()

    def steps() -> Any:
        inside.set()
        yield from core.store.acquire(core.spec("job").ask("me", queue=False))

    def call() -> None:
        with pytest.raises(StoreUnavailable):
            core.driver.run(steps(), 60.0)

    stuck = sqlite3.connect(tmp_path / "leases.db", isolation_level=None)
    stuck.execute("BEGIN IMMEDIATE")
    caller = threading.Thread(target=call)
    caller.start()
    assert inside.wait(60)
    started = time.monotonic()
    core.at_exit(1.0)
    assert time.monotonic() - started < 30
    caller.join()
    stuck.close()


# Tasks.


async def test_the_keeper_survives_the_cancellation_of_every_task() -> None:
    async with aio.connect("memory://ends-cancel-all", ttl=5, renew_every=0.2) as locks:

        async def renewed(lease: aio.Lease) -> None:
            first = lease._deadline
            while lease._deadline == first:
                lease.check()
                await asyncio.sleep(0.01)

        lease = await locks.lock("job").acquire()
        await asyncio.sleep(0.05)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await renewed(lease)
        async with locks.lock("later") as later:
            await renewed(later)
            await renewed(lease)
        await lease.release()


async def test_a_keeper_that_is_cancelled_before_it_has_begun_comes_back() -> None:
    async with aio.connect("memory://ends-cancel-first", ttl=5, renew_every=0.2) as locks:
        lease = await locks.lock("job").acquire()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # nothing of it has run
        first = lease._deadline
        while lease._deadline == first:
            lease.check()
            await asyncio.sleep(0.01)
        await lease.release()


async def test_close_goes_on_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    locks = aio.connect(f"sqlite:///{tmp_path}/leases.db", ttl=60)
    lease = await locks.lock("job").acquire()
    closing = asyncio.ensure_future(locks.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    await locks.close()
    assert not lease.valid
    async with aio.connect(f"sqlite:///{tmp_path}/leases.db") as others:
        assert await others.lock("job").try_acquire() is not None


async def test_locks_that_nobody_has_any_more_are_closed(tmp_path: Path) -> None:
    for _ in range(5):
        locks = aio.connect(f"sqlite:///{tmp_path}/leases.db")
        assert await locks.inspect("job") is None
        del locks
    for _ in range(2000):
        if not os.listdir(tmp_path / "leases.db-wake"):
            break
        await asyncio.sleep(0.01)
    assert os.listdir(tmp_path / "leases.db-wake") == []


async def test_a_block_that_begins_too_late_is_not_entered() -> None:
    async with aio.connect("memory://ends-late") as locks:
        lock = locks.lock("job", ttl=1.0, renew=False, on_lost="cancel")
        lease = await lock.acquire()
        time.sleep(1.1)  # the loop is blocked, so nobody has been told
        entered = False

        async def enter() -> None:
            nonlocal entered
            async with lease:
                entered = True

        with pytest.raises(leasehold.LeaseLost):
            await enter()
        assert not entered
        await asyncio.sleep(0.01)  # no stray cancellation


async def test_acquire_is_a_coroutine_too() -> None:
    async with aio.connect("memory://ends-coroutine") as locks:
        lease = await asyncio.create_task(locks.lock("job").acquire())
        assert lease.valid
        await lease.release()
        async with locks.lock("job").acquire(timeout=1) as again:
            assert again.token > lease.token


# The file.


def test_a_link_to_the_file_is_the_file(tmp_path: Path) -> None:
    (tmp_path / "link").mkdir()
    link = tmp_path / "link" / "other.db"
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as here:
        with here.lock("job"):
            link.symlink_to(tmp_path / "leases.db")
            with leasehold.connect(f"sqlite:///{link}") as there:
                assert there.lock("job").try_acquire() is None
                assert len(os.listdir(tmp_path / "leases.db-wake")) == 2
    assert not (tmp_path / "link" / "other.db-wake").exists()


def test_without_its_doorbell_a_waiter_polls(locks: leasehold.Locks, tmp_path: Path) -> None:
    lease = locks.lock("job").acquire()
    for fifo in (tmp_path / "leases.db-wake").iterdir():
        fifo.unlink()
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as others:
        others.inspect("job")
        for fifo in (tmp_path / "leases.db-wake").iterdir():
            fifo.unlink()
        faults = install(others)
        waiter = threading.Thread(target=lambda: others.lock("job").acquire())
        waiter.start()
        eventually(lambda: (info := locks.inspect("job")) and info.waiters)
        before = faults.calls["acquire"]
        # One that trusts in being rung looks every 5 s: it would take 40 s for that.
        eventually(lambda: faults.calls["acquire"] >= before + 8, 20)
        lease.release()
        waiter.join()


def test_many_dead_names_are_purged(locks: leasehold.Locks, tmp_path: Path) -> None:
    core = locks._core
    locks.lock("held", ttl=3600).acquire()
    kept = locks.lock("kept", ttl=3600).acquire()
    connection = sqlite3.connect(tmp_path / "leases.db", isolation_level=None)
    connection.execute("BEGIN")
    rows = [(f"old {number}",) for number in range(2500)]
    connection.executemany("INSERT INTO leasehold VALUES ('', ?, 1, 1, 5, 'b', '', 0, NULL)", rows)
    connection.execute("INSERT INTO leasehold VALUES ('', 'of another boot', 1, 1, 5, 'b', '[\"x\",1,[],[]]', 0, NULL)")
    connection.execute("UPDATE leasehold SET updated = 0 WHERE name = 'kept'")
    connection.execute("DELETE FROM leasehold_meta WHERE key = 'tidied'")
    connection.execute("COMMIT")
    core.driver.run(core.store.tidy(), 60)
    names = {name for (name,) in connection.execute("SELECT name FROM leasehold")}
    connection.close()
    assert "kept" in names
    assert not [name for name in names if name.startswith("old") or name == "of another boot"]
    kept.release()


def test_a_lease_that_is_not_to_be_renewed_is_not_when_it_is_called() -> None:
    """A ring for it means: look whether it is still ours. That must not make it last longer."""
    with leasehold.connect("memory://called") as locks:
        lease = locks.lock("name", ttl=30, renew=False).acquire()
        before = lease._deadline
        core = locks._core
        core.rung(lease._claim.attempt)
        eventually(lambda: not core.urgent)
        locks.inspect("name")  # the keeper was at the store before us, or is at it now
        time.sleep(0.05)
        assert lease._deadline == before
        assert locks.metrics().renewals == 0
        assert lease.release()


def test_tidying_leaves_time_for_leases_that_come_meanwhile() -> None:
    """Its limit cannot be reckoned from those: one of a second must be renewed though the purge hangs."""
    with leasehold.connect("memory://tidy", ttl=3600) as locks:
        lease = locks.lock("x").acquire()
        effects = keeping.keep(locks._core, locks._core.new_bell())
        limits = []
        effect = next(effects)
        while not isinstance(effect, Wait):
            if isinstance(effect, Run) and effect.steps.__name__ == "tidy":
                limits.append(effect.limit)
            effect = effects.send(None)
        assert limits == [keeping.TIDY_LIMIT]
        assert keeping.TIDY_LIMIT <= 0.5
        assert lease.release()


def test_a_renewal_that_hangs_leaves_time_for_the_leases_that_live_elsewhere() -> None:
    """As in a cluster of which one node hangs: the others must be renewed though their neighbour is not."""
    with leasehold.connect("memory://spare") as locks:
        core = locks._core
        core.wake_keeper = lambda: None  # type: ignore[method-assign]  # what is due is looked at here alone
        long, short = locks.lock("long", ttl=30).acquire(), locks.lock("short", ttl=9).acquire()
        long._due = 0.0  # it alone
        effects = keeping._renew_due(core)
        effect = next(effects)
        assert isinstance(effect, Run)
        assert keeping.SPARE <= effect.limit <= (short._deadline - short._sent) / 2
        effects.close()
        short.release()
        effect = next(keeping._renew_due(core))
        assert isinstance(effect, Run)
        assert effect.limit == policy.CALL_LIMIT
        assert long.release()


async def test_a_task_that_outlives_its_block_is_not_given_another_lease_for_its_own() -> None:
    async with aio.connect("memory://outlives") as locks, locks.lock("outer"):
        gate = asyncio.Event()

        async def late() -> None:
            await gate.wait()
            aio.current().check()

        async with locks.lock("inner"):
            task = asyncio.create_task(late())
        gate.set()
        with pytest.raises(leasehold.LeaseLost, match="inner"):
            await task
