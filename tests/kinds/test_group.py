"""Groups where it gets tight: a fork, a store that is not ready, callbacks that take their time while it is drained."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio
from leasehold.testing import faults
from leasehold.testing.handles import eventually


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


class NotReady:
    """A store that says so, as long as ``on``, to whoever asks who is there."""

    def __init__(self, locks: Any) -> None:
        self.on = True
        self.asked = 0
        inspect = locks._core.store.inspect

        def refuse(name: str) -> Any:
            self.asked += 1
            if self.on:
                raise leasehold.StoreNotReady("there is no such table")
            return (yield from inspect(name))

        locks._core.store.inspect = refuse


def test_a_store_that_is_not_ready_is_asked_again(url: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    with leasehold.connect(url, owner="me") as locks:
        store = NotReady(locks)
        group = locks.group("g", heartbeat=30, look=0.02)
        group.on_joined(lambda member: seen.append(member.owner))
        group.join()
        eventually(lambda: store.asked > 3)
        with pytest.raises(leasehold.StoreNotReady):
            group.owner_of("key")
        store.on = False
        eventually(lambda: seen == ["me"])
        assert caplog.text.count("cannot be looked at") == 1
        assert group.owner_of("key").owner == "me"  # type: ignore[union-attr]


def test_a_store_that_is_not_ready_is_asked_again_by_a_task(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        seen: list[str] = []
        async with aio.connect(url, owner="me") as locks:
            store = NotReady(locks)
            group = locks.group("g", heartbeat=30, look=0.02)
            group.on_joined(lambda member: seen.append(member.owner))
            await group.join()
            async with asyncio.timeout(60):
                while store.asked <= 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                store.on = False
                while seen != ["me"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    asyncio.run(work())
    assert caplog.text.count("cannot be looked at") == 1


class Listener:
    """Notes what it is told, and of whom."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def on(self, happened: str) -> Any:
        return lambda member: self.told.append((happened, member.owner))


def test_who_listens_later_is_told_who_is_there_too(url: str) -> None:
    """Each callback hears of each member once, in order, whenever it was registered and whatever was before it."""
    with leasehold.connect(url, owner="first") as locks, leasehold.connect(url, owner="second") as other:
        group, there = locks.group("g", look=0.02), other.group("g")
        group.join()
        early, late = Listener(), Listener()
        group.on_failed(early.on("failed"))
        eventually(lambda: group._watch is not None and group._watch.roster, what="it has looked for the first time")
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


async def test_who_listens_later_is_told_who_is_there_too_by_a_task(url: str) -> None:
    async with aio.connect(url, owner="first") as locks:
        group, early, late = locks.group("g", look=0.02), Listener(), Listener()
        await group.join()
        group.on_left(early.on("left"))
        async with asyncio.timeout(60):
            while group._watch is None or not group._watch.roster:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            group.on_joined(early.on("joined"))
            while early.told != [("joined", "first")]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            group.on_joined(late.on("joined"))
            while late.told != [("joined", "first")]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
        assert early.told == late.told == [("joined", "first")]


def test_leaving_goes_on_when_one_cannot_be_given_back(url: str) -> None:
    """Who leaves is a member no longer, whatever became of the first of its memberships; the keeper sees to that."""
    with leasehold.connect(url) as locks, leasehold.connect(url) as other:
        group = locks.group("g")
        memberships = [group.join(number) for number in range(3)]
        release, failed = locks._core.store.release, []

        def lost(*args: Any) -> Any:
            if not failed:
                failed.append(args)
                raise leasehold.StoreUnavailable("away")
            return release(*args)

        locks._core.store.release = lost  # type: ignore[method-assign]
        with pytest.raises(leasehold.StoreUnavailable):
            group.leave()
        assert not any(each.valid for each in memberships)
        eventually(lambda: not other.group("g").members())


async def test_leaving_that_is_cancelled_leaves_all_the_same(url: str) -> None:
    async with aio.connect(url) as locks, aio.connect(url) as other:
        group = locks.group("g")
        memberships = [await group.join(number) for number in range(3)]
        driver: Any = locks._core.driver
        run, hanging = driver.run, asyncio.Event()

        async def hangs(steps: Any, limit: float) -> Any:
            if asyncio.current_task() is task:
                hanging.set()
                await asyncio.Event().wait()
            return await run(steps, limit)

        driver.run = hangs
        task = asyncio.create_task(group.leave())
        await asyncio.wait_for(hanging.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not any(each.valid for each in memberships)
        async with asyncio.timeout(60):
            while await other.group("g").members():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def test_callbacks_need_a_loop_and_then_work(url: str) -> None:
    """What was registered outside is refused, and does not keep those that come later from being called."""
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


def test_memberships_that_have_ended_are_forgotten(url: str) -> None:
    """One who comes and goes often does not grow for it."""
    with leasehold.connect(url) as locks:
        group = locks.group("g")
        for _ in range(20):
            with group.join():
                pass
        last = group.join()
        assert group._mine == [last]
        assert list(locks._core.standing.values()) == [last]
        group.leave()
        assert not last.valid


def test_what_was_seen_long_ago_is_not_believed(url: str) -> None:
    """The store is away: for as long as nobody can have failed in the meantime, what the callbacks saw last holds."""
    with leasehold.connect(url) as locks, leasehold.connect(url, owner="other") as other:
        other.group("g").join()
        network = faults.install(locks)
        patient: Any = locks.group("g", look=0.02)
        hasty: Any = locks.group("g", heartbeat=0.2, look=0.02)
        patient.on_failed(print)
        hasty.on_failed(print)
        eventually(lambda: patient._watch.roster and hasty._watch.roster)
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
def test_who_has_failed_is_not_told_what_it_owned(side: str, url: str) -> None:
    """Others have divided its keys by now. Without the store it cannot know how."""

    async def call(result: Any) -> Any:
        return await result if side == "asyncio" else result

    async def work() -> None:
        locks: Any = (leasehold if side == "threads" else aio).connect(url, owner="me")
        group = locks.group("g", look=0.02)
        group.on_failed(print)
        membership = await call(group.join())
        network = faults.install(locks)
        async with asyncio.timeout(60):
            while not group._watch.roster:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        network.lose_request("inspect")
        assert (await call(group.owner_of("key"))).owner == "me"
        locks._core.lose(membership, "as its keeper would hear")
        with pytest.raises(leasehold.StoreUnavailable):
            await call(group.owner_of("key"))
        await call(group.join())
        assert (await call(group.owner_of("key"))).owner == "me"
        network.mend()
        await call(locks.close())

    asyncio.run(work())


GRACE = 60.0
"""Drains that waited for a callback would take so long; the others take a moment."""


def test_drain_and_close_do_not_wait_for_a_callback(url: str) -> None:
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


def test_drain_does_not_wait_for_a_callback_in_a_task(url: str) -> None:
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
def test_a_forked_child_looks_for_itself(tmp_path: Path) -> None:
    """The parent's thread does not look in the child: what that saw last is old there, and its callbacks are silent."""
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
