"""Groups when something goes wrong: a fork, a store that is not ready, failed releases, slow callbacks in a drain."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio
from leasehold.testing import faults
from leasehold.testing.handles import eventually

from .seams import Changed, connect


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


class NotReady:
    """A store that is not ready, as long as ``on``, for whoever asks who is there."""

    def __init__(self) -> None:
        self.on = True
        self.asked = 0

    def __call__(self, inner: Any) -> Changed:
        return Changed(inner, inspect=self.refuse)

    def refuse(self, inspect: Any, name: str) -> Any:
        self.asked += 1
        if self.on:
            raise leasehold.StoreNotReady("there is no such table")
        return (yield from inspect(name))


def test_group_asks_a_store_that_is_not_ready_again(url: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    store = NotReady()
    with connect(url, owner="me", store=store) as locks:
        group = locks.group("g", heartbeat=30, look=0.02)
        group.on_joined(lambda member: seen.append(member.owner))
        group.join()
        eventually(lambda: store.asked > 3)
        with pytest.raises(leasehold.StoreNotReady):
            group.owner_of("key")
        store.on = False
        eventually(lambda: seen == ["me"])
        assert caplog.text.count("cannot read group") == 1
        assert group.owner_of("key").owner == "me"


async def test_group_of_a_task_asks_a_store_that_is_not_ready_again(url: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    store = NotReady()
    async with connect(url, "asyncio", owner="me", store=store) as locks:
        group = locks.group("g", heartbeat=30, look=0.02)
        group.on_joined(lambda member: seen.append(member.owner))
        await group.join()
        async with asyncio.timeout(60):
            while store.asked <= 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            store.on = False
            while seen != ["me"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert caplog.text.count("cannot read group") == 1


class Listener:
    """Notes what it is told, and of whom."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def on(self, happened: str) -> Any:
        return lambda member: self.told.append((happened, member.owner))


LOOKED = 2
"""So many looks have begun when the first is over."""


def test_late_callback_is_called_for_members_that_are_there(url: str) -> None:
    """Each callback is called once for each member, in order, whenever and after whatever it was registered."""
    with leasehold.connect(url, owner="first") as locks, leasehold.connect(url, owner="second") as other:
        group, there, network = locks.group("g", look=0.02), other.group("g"), faults.install(locks)
        group.join()
        early, late = Listener(), Listener()
        group.on_failed(early.on("failed"))
        eventually(lambda: network.calls["inspect"] >= LOOKED)
        group.on_left(early.on("left"))
        group.on_joined(early.on("joined"))
        eventually(lambda: early.told == [("joined", "first")])
        there.join()
        eventually(lambda: early.told[1:] == [("joined", "second")])
        group.on_joined(late.on("joined"))
        group.on_left(late.on("left"))
        eventually(lambda: late.told == [("joined", "first"), ("joined", "second")])
        there.leave()
        eventually(lambda: late.told[2:] == [("left", "second")])
        eventually(lambda: early.told[2:] == [("left", "second")])


async def test_late_callback_of_a_task_is_called_for_members_that_are_there(url: str) -> None:
    async with aio.connect(url, owner="first") as locks:
        group, early, late = locks.group("g", look=0.02), Listener(), Listener()
        network = faults.install(locks)
        await group.join()
        group.on_left(early.on("left"))
        async with asyncio.timeout(60):
            while network.calls["inspect"] < LOOKED:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            group.on_joined(early.on("joined"))
            while early.told != [("joined", "first")]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            group.on_joined(late.on("joined"))
            while late.told != [("joined", "first")]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
        assert early.told == late.told == [("joined", "first")]


def test_leave_releases_every_membership_though_one_release_fails(url: str) -> None:
    """Whoever leaves is no member any more. The keeper ends the membership whose release has failed."""
    with leasehold.connect(url) as locks, leasehold.connect(url) as other:
        group = locks.group("g")
        memberships = [group.join(number) for number in range(3)]
        faults.install(locks).lose_request("release", times=1)
        with pytest.raises(leasehold.StoreUnavailable):
            group.leave()
        assert not any(each.valid for each in memberships)
        eventually(lambda: not other.group("g").members())


async def test_cancelled_leave_releases_every_membership(url: str) -> None:
    async with aio.connect(url) as locks, aio.connect(url) as other:
        group = locks.group("g")
        memberships = [await group.join(number) for number in range(3)]
        network = faults.install(locks)
        network.delay_request(60, "release", times=1)
        task = asyncio.create_task(group.leave())
        async with asyncio.timeout(60):
            while not network.calls["release"]:  # noqa: ASYNC110
                await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not any(each.valid for each in memberships)
        async with asyncio.timeout(60):
            while await other.group("g").members():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def test_group_callbacks_of_tasks_need_a_running_loop(url: str) -> None:
    """One that is registered outside of a loop is refused, and later ones are called all the same."""
    listener = Listener()
    locks = aio.connect(url, owner="me")
    group = locks.group("g", look=0.02)
    with pytest.raises(RuntimeError, match="loop"):
        group.on_joined(listener.on("nowhere"))

    async def work() -> None:
        async with locks:
            await group.join()
            group.on_joined(listener.on("joined"))
            async with asyncio.timeout(60):
                while not listener.told:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    asyncio.run(work())
    assert listener.told == [("joined", "me")]


def test_memberships_that_have_ended_take_no_memory(url: str) -> None:
    """A member that joins and leaves often does not grow."""
    with leasehold.connect(url) as locks:
        group = locks.group("g")
        ended: list[weakref.ref[leasehold.Lease]] = []
        for _ in range(20):
            with group.join() as membership:
                ended.append(weakref.ref(membership))
            del membership
        last = group.join()
        gc.collect()
        assert not any(ref() for ref in ended)
        assert last.valid
        group.leave()
        assert not last.valid


def test_owner_of_goes_by_what_was_seen_until_a_member_can_have_failed(url: str) -> None:
    """The store is away: what the callbacks saw last holds for as long as nobody can have failed in the meantime."""
    with leasehold.connect(url) as locks, leasehold.connect(url, owner="other") as other:
        other.group("g").join()
        network = faults.install(locks)
        patient: Any = locks.group("g", look=0.02)
        hasty: Any = locks.group("g", heartbeat=0.2, look=0.02)
        seen: dict[str, str] = {}
        patient.on_joined(lambda member: seen.update(patient=member.owner))
        hasty.on_joined(lambda member: seen.update(hasty=member.owner))
        eventually(lambda: seen == {"patient": "other", "hasty": "other"})
        network.lose_request("inspect")

        def owner(group: Any) -> str:
            try:
                return str(group.owner_of("key").owner)
            except leasehold.StoreUnavailable:
                return "unknown"

        eventually(lambda: owner(hasty) == "unknown")
        assert owner(patient) == "other"
        network.mend()
        eventually(lambda: owner(hasty) == "other")


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_member_that_has_failed_is_not_told_what_it_owned(side: str, url: str) -> None:
    """Others have divided its keys by now. Without the store it cannot know how."""

    async def call(result: Any) -> Any:
        return await result if side == "asyncio" else result

    async def work() -> None:
        locks: Any = (leasehold if side == "threads" else aio).connect(url, owner="me")
        group = locks.group("g", look=0.02)
        seen: list[str] = []
        group.on_joined(lambda member: seen.append(member.owner))
        membership = await call(group.join())
        network = faults.install(locks)
        async with asyncio.timeout(60):
            while not seen:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            network.lose_request("inspect")
            assert (await call(group.owner_of("key"))).owner == "me"
            assert await call(locks.break_lease("g", force=True))
            while not membership.lost.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        with pytest.raises(leasehold.StoreUnavailable):
            await call(group.owner_of("key"))
        await call(group.join())
        assert (await call(group.owner_of("key"))).owner == "me"
        network.mend()
        await call(locks.close())

    asyncio.run(work())


GRACE = 60.0
"""Drains that waited for a callback would take so long; the others take a moment."""


def test_drain_and_close_do_not_wait_for_a_group_callback(url: str) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def callback(member: object) -> None:
        inside.set()
        go_on.wait(2 * GRACE)

    locks = leasehold.connect(url)
    group = locks.group("g", look=0.02)
    group.on_joined(callback)
    group.join()
    assert inside.wait(60)
    begun = time.monotonic()
    assert locks.drain(GRACE) == []
    assert time.monotonic() - begun < GRACE / 2
    locks.close()
    assert time.monotonic() - begun < GRACE / 2
    go_on.set()


def test_drain_does_not_wait_for_a_group_callback_of_a_task(url: str) -> None:
    async def work() -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def callback(member: object) -> None:
            inside.set()
            await go_on.wait()

        async with aio.connect(url) as locks:
            group = locks.group("g", look=0.02)
            group.on_joined(callback)
            await group.join()
            await asyncio.wait_for(inside.wait(), 60)
            begun = time.monotonic()
            assert await locks.drain(GRACE) == []
            assert time.monotonic() - begun < GRACE / 2
            go_on.set()

    asyncio.run(work())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_looks_for_members_itself(tmp_path: Path) -> None:
    """The parent's thread does not run in the child: what it saw last is outdated there, and calls no callback."""
    told = tmp_path / "told"
    told.touch()

    def tell(happened: str) -> Any:
        def callback(member: Any) -> None:
            with told.open("a") as file:
                file.write(f"{os.getpid()} {happened} {member.owner}\n")

        return callback

    url = f"sqlite:///{tmp_path}/leases.db"
    with leasehold.connect(url, owner="parent") as locks, leasehold.connect(url, owner="other") as other:
        group = locks.group("g", look=0.05)
        group.on_joined(tell("joined"))
        group.on_left(tell("left"))
        group.join()
        eventually(lambda: "joined parent" in told.read_text())
        child = os.fork()
        if child == 0:
            outcome = 9
            try:
                mine = group.members()
                outcome = 1 if [each.owner for each in mine] != ["parent"] else outcome
                eventually(
                    lambda: (
                        {member.owner for key in range(50) if (member := group.owner_of(str(key)))}
                        == {"parent", "other"}
                    )
                )
                eventually(lambda: f"{os.getpid()} joined other" in told.read_text())
                outcome = 7
            finally:
                os._exit(outcome)
        late = other.group("g")
        late.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        eventually(lambda: f"{os.getpid()} joined other" in told.read_text())
        assert told.read_text().count(f"{child} joined parent") == 1
        late.leave()
        eventually(lambda: f"{os.getpid()} left other" in told.read_text())


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_close_with_a_membership_logs_no_warning(side: str, url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever closes leaves its groups in good order; a lease that was held is lost by it, as before."""

    async def work() -> None:
        async with aio.connect(url) as locks:
            membership = await locks.group("g").join()
            await locks.close()
            assert (membership.valid, membership.lost_reason) == (False, None)

    if side == "asyncio":
        asyncio.run(work())
    else:
        with leasehold.connect(url) as locks:
            membership, lease = locks.group("g").join(), locks.lock("x").acquire()
            locks.close()
            assert (membership.valid, membership.lost_reason) == (False, None)
            assert "closed" in (lease.lost_reason or "")
    told = [each.getMessage() for each in caplog.records if each.levelname != "INFO"]
    assert [each for each in told if "'g'" in each] == []
    with leasehold.connect(url) as other:
        assert not other.group("g").members()


def test_update_of_a_member_whose_store_is_away_loses_the_membership(url: str) -> None:
    """Nobody knows whether it was carried out, so the member is told that it is none any more."""
    with leasehold.connect(url) as locks, leasehold.connect(url) as other:
        network = faults.install(locks)
        group = locks.group("g", heartbeat=0.3, misses=2)
        membership = group.join(1)
        network.lose_request("*", noticed_after=0.05)
        with pytest.raises(leasehold.StoreUnavailable):
            group.update(2)
        assert membership.lost.wait(1)
        assert not membership.valid
        assert membership.lost_reason == "group.update() did not finish, so the membership was given back"
        network.mend()
        eventually(lambda: not other.group("g").members())


def test_two_members_that_join_as_one_at_the_same_time_are_one(url: str) -> None:
    """However they interleave, exactly one of them stays."""
    for _ in range(20):
        with leasehold.connect(url, owner="a") as one, leasehold.connect(url, owner="a") as two:
            barrier, outcomes = threading.Barrier(2), []

            def join(
                locks: leasehold.Locks, barrier: threading.Barrier = barrier, outcomes: list[str] = outcomes
            ) -> None:
                barrier.wait(30)
                try:
                    locks.group("g").join(unique=True)
                    outcomes.append("member")
                except leasehold.AcquireTimeout:
                    outcomes.append("refused")

            threads = [threading.Thread(target=join, args=(locks,)) for locks in (one, two)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(outcomes) == ["member", "refused"]
            eventually(lambda: len(one.group("g").members()) == 1)


def test_member_that_was_updated_had_joined_before(url: str) -> None:
    """An update gives it a later token than that of one that has joined meanwhile."""
    with leasehold.connect(url, owner="a") as one:
        first, checks = one.group("g"), []

        def join_first(acquire: Any, ask: Any) -> Any:
            first.join(1, unique=True)
            return acquire(ask)

        def update_first(inspect: Any, name: str) -> Any:
            checks.append(name)
            if len(checks) == 2:
                first.update(2)
            return inspect(name)

        def change(store: Any) -> Changed:
            return Changed(store, acquire=join_first, inspect=update_first)

        with connect(url, owner="a", store=change) as two, pytest.raises(leasehold.AcquireTimeout, match="already"):
            two.group("g").join(3, unique=True)
        eventually(lambda: [member.data for member in first.members()] == [2])


def test_updates_of_several_threads_follow_one_another(url: str) -> None:
    with leasehold.connect(url) as locks, ThreadPoolExecutor(4) as pool:
        group = locks.group("g")
        membership = group.join(0)
        faults.install(locks).delay_answer(0.1, "acquire")
        for updated in [pool.submit(group.update, number) for number in (1, 2, 3, 4)]:
            updated.result()
        assert membership.valid
        assert [member.data for member in group.members()] == [membership.data]


async def test_updates_of_several_tasks_follow_one_another(url: str) -> None:
    async with aio.connect(url) as locks:
        group = locks.group("g")
        membership = await group.join(0)
        faults.install(locks).delay_answer(0.1, "acquire")
        await asyncio.gather(*(group.update(number) for number in (1, 2, 3, 4)))
        assert (membership.valid, membership.data) == (True, 4)
        assert [member.data for member in await group.members()] == [4]


async def test_cancelled_update_is_finished_in_the_background(url: str) -> None:
    async with aio.connect(url) as locks:
        group = locks.group("g")
        membership = await group.join(1)
        faults.install(locks).delay_answer(0.3, "acquire")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(group.update(2), 0.05)
        await group.update(3)
        assert membership.lost_reason is None
        assert [member.data for member in await group.members()] == [3]
