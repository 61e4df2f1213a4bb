"""``once`` against a simple model: random runs, failures, holders that are overtaken, and forgetting."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import leasehold
from intercept import Intercepted
from leasehold import aio
from leasehold.core.protocol import SECOND
from leasehold.core.timing import CALL_LIMIT
from leasehold.errors import StoreNotReady
from leasehold.kinds.once.note import LONGEST_NOTE, Note, dump, load
from leasehold.kinds.once.outcome import Outcome
from leasehold.testing import faults

versions = st.integers(1, 3)


class Once(RuleBasedStateMachine):
    """The model: for each version whether it is done, and how often it was tried to an end."""

    def __init__(self) -> None:
        super().__init__()
        url = f"memory://{uuid.uuid4().hex}"
        self.locks = [leasehold.connect(url, owner=owner) for owner in ("a", "b")]
        self.model: dict[int, tuple[bool, int, str]] = {}
        self.calls = 0

    def work(self, fails: int, overtaken: int) -> Any:
        """Fails so many times; before that, its holder is overtaken so many times."""
        left = [overtaken, fails]

        def function() -> str:
            self.calls += 1
            lease = leasehold.current()
            if left[0]:
                left[0] -= 1
                assert self.locks[0].break_lease("work", force=True)
                assert not lease.valid or lease.lost.wait(30)
                return "too late"
            if left[1]:
                left[1] -= 1
                raise ValueError("fails")
            return lease.owner

        return function

    @rule(
        who=st.integers(0, 1),
        version=versions,
        retries=st.integers(0, 2),
        same=st.booleans(),
        fails=st.integers(0, 3),
        overtaken=st.integers(0, 1),
    )
    def run(self, who: int, version: int, retries: int, same: bool, fails: int, overtaken: int) -> None:
        done, attempts, owner = self.model.get(version, (False, 0, ""))
        calls, left = 0, fails
        before = self.calls
        once = self.locks[who].once("work", version=version, retries=retries, retry_by="same" if same else "any")
        if overtaken and not done and attempts <= retries:
            with pytest.raises(leasehold.LeaseLost):
                once.run(self.work(fails, overtaken), check=False)
            assert self.calls - before == 1
            return
        if not done and attempts <= retries:
            owner = self.locks[who].owner
            while not done and attempts <= retries:
                calls, attempts = calls + 1, attempts + 1
                done, left = left == 0, max(0, left - 1)
            self.model[version] = (done, attempts, owner)
        outcome = once.run(self.work(fails, 0), check=False)
        assert self.calls - before == calls
        assert (outcome.ok, outcome.attempts, outcome.owner) == (done, attempts, owner)

    @rule(version=versions)
    def forget(self, version: int) -> None:
        assert self.locks[0].once("work", version=version).forget() == (self.model.pop(version, None) is not None)

    @rule()
    def forget_all(self) -> None:
        assert self.locks[1].once("work").forget(every_version=True) == bool(self.model)
        self.model.clear()

    @invariant()
    def everybody_says_the_same(self) -> None:
        for locks in self.locks:
            for version in (1, 2, 3):
                outcome = locks.once("work", version=version).outcome()
                found = None if outcome is None else (outcome.ok, outcome.attempts, outcome.owner)
                assert found == self.model.get(version)
            assert locks.inspect("work") is None

    def teardown(self) -> None:
        for locks in self.locks:
            locks.close()


TestOnce = Once.TestCase
TestOnce.settings = settings(max_examples=30, stateful_step_count=12, deadline=None)


def test_outcomes_recorded_by_a_newer_leasehold_are_refused() -> None:
    with pytest.raises(StoreNotReady, match="newer"):
        load("x", '{"format":3,"outcomes":{}}')


class Side:
    """A ``Locks`` of threads or of tasks, used alike, behind a network that can lose what it asks."""

    def __init__(self, side: str, **options: Any) -> None:
        self.threads = side == "threads"
        self.store = Intercepted(f"memory://{uuid.uuid4().hex}")
        self.locks: Any = self.store.connect(side, **options)
        self.network = faults.install(self.locks)

    async def call(self, function: Any, *args: Any) -> Any:
        return await (asyncio.to_thread(function, *args) if self.threads else function(*args))


@pytest.fixture(params=["threads", "asyncio"])
def side(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def recorded(versions: int, **fields: Any) -> dict[str, Outcome[Any]]:
    """Outcomes of so many versions, the first the oldest."""
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    found = {}
    for number in range(versions):
        started = begun + timedelta(seconds=number)
        who = ("owner", number, started, started, 0.0)
        found[str(number)] = Outcome("x", str(number), "done", *who, None, 1, None, False)._replace(**fields)
    return found


@pytest.mark.parametrize(("versions", "whole"), [(30, 20), (800, 100)])
def test_no_version_is_forgotten_for_want_of_room(versions: int, whole: int, caplog: pytest.LogCaptureFixture) -> None:
    """Reference, once: outcomes are kept until forget(). Old ones lose their texts, then all but their status."""
    outcomes = recorded(versions, status="failed", error="e" * 2000, attempts=3)
    text = dump("x", Note(outcomes))
    assert text is not None
    assert len(text) <= LONGEST_NOTE
    kept = load("x", text).versions
    assert kept.keys() == outcomes.keys()
    assert {(each.status, each.attempts) for each in kept.values()} == {("failed", 3)}
    newest = sorted(kept, key=int)[-whole:]
    assert all(kept[version].owner == "owner" for version in newest)
    assert kept[newest[-1]].error == "e" * 2000
    assert (
        f"results and errors of the {sum(each.error is None for each in kept.values())} oldest versions" in caplog.text
    )
    caplog.clear()
    assert load("x", dump("x", Note(kept))).versions == kept
    assert "dropped" not in caplog.text, "it is told once"


def test_result_that_is_too_long_to_record_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with leasehold.connect(f"memory://{uuid.uuid4().hex}") as locks:
        assert locks.once("x", version=1).run(lambda: "r" * 20_000).ok
        assert "the result of 'x' version 1 is not recorded" in caplog.text
        caplog.clear()
        assert locks.once("x", version=2).run(lambda: "r" * 10_000).ok
        assert "not recorded" not in caplog.text


async def test_defaults_of_connect_for_locks_do_not_end_once_elections_and_groups(side: str) -> None:
    """A timeout, max_hold, min_hold or beat_every of connect() would end a term, a membership or the work."""
    options: dict[str, Any] = {"timeout": 0.1, "max_hold": 0.3, "min_hold": 0.2, "beat_every": 0.1, "ttl": 9}
    there = Side(side, **options)
    store, call = there.store, there.call
    await call(there.locks.once("x").run, lambda: None)
    await call(there.locks.election("y").run, lambda term: None if there.threads else asyncio.sleep(0))
    await call((await call(there.locks.group("z").join)).release)
    assert [ask.name for ask in store.asks] == ["x", "y", "z"]
    for ask in store.asks:
        assert ask.kept, "its renewal is ended by nothing but its release"
        assert ask.rest == 0, "the name is free as soon as it is released"
    assert store.limits["acquire"] == [CALL_LIMIT] * 3, "no timeout shortens a call"
    assert store.asks[0].ttl == 9 * SECOND
    held = await call(there.locks.semaphore("s", limit=1).acquire)
    with pytest.raises(leasehold.AcquireTimeout):
        await call(there.locks.semaphore("s", limit=1).acquire)
    await call(held.release)
    await call(there.locks.close)


async def test_cancelled_run_records_nothing() -> None:
    async with aio.connect(f"memory://{uuid.uuid4().hex}") as locks:
        once = locks.once("x")
        task = asyncio.create_task(once.run(asyncio.Event().wait))
        async with asyncio.timeout(20):
            while await locks.inspect("x") is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await once.outcome() is None
        assert await locks.inspect("x") is None
        assert (await once.run(lambda: 5)).result == 5, "a plain function does too"


def test_interrupted_run_records_nothing() -> None:
    def press() -> None:
        raise KeyboardInterrupt

    with leasehold.connect(f"memory://{uuid.uuid4().hex}") as locks:
        with pytest.raises(KeyboardInterrupt):
            locks.once("x").run(press)
        assert locks.once("x").outcome() is None
        assert locks.inspect("x") is None


def test_outcome_recorded_in_the_same_moment_is_not_told_as_running(side: str) -> None:
    """``wait=False``: another was at it when it was tried, and has recorded its outcome since."""
    store = Intercepted(f"memory://{uuid.uuid4().hex}")
    with leasehold.connect(store.url, owner="other") as other:
        busy = other.lock("x").acquire()

        def end() -> None:
            """The try has found the name taken. Before the next question, another does the work."""
            busy.release()
            assert other.once("x").run(lambda: "done").ran

        store.before["inspect"] = end

        async def run() -> Any:
            async with store.connect(side) as locks:
                return await locks.once("x", wait=False).run(lambda: "again")

        if side == "threads":
            with store.connect(side) as locks:
                outcome = locks.once("x", wait=False).run(lambda: "again")
        else:
            outcome = asyncio.run(run())
        assert store.begun["inspect"] == 1
        assert (outcome.status, outcome.owner, outcome.result, outcome.ran) == ("done", "other", "done", False)


async def test_failure_recorded_in_the_same_moment_is_raised(side: str) -> None:
    """``wait=False``: as any other failure that is final."""
    there = Side(side)
    with leasehold.connect(there.store.url) as other:
        busy = other.lock("x").acquire()

        def end() -> None:
            busy.release()
            other.once("x", check=False).run(lambda: 1 // 0)

        there.store.before["inspect"] = end
        with pytest.raises(leasehold.OnceFailed, match="ZeroDivisionError"):
            await there.call(there.locks.once("x", wait=False).run, lambda: "again")
    await there.call(there.locks.close)


@pytest.mark.parametrize("timeout", [-1, float("nan"), [5]])
def test_once_refuses_a_timeout_that_is_no_duration(timeout: Any) -> None:
    async def run() -> None:
        async with aio.connect(f"memory://{uuid.uuid4().hex}") as locks:
            await locks.once("x").run(lambda: 1, timeout)

    with pytest.raises((ValueError, TypeError), match="timeout"):
        asyncio.run(run())
    with leasehold.connect(f"memory://{uuid.uuid4().hex}") as locks:
        with pytest.raises((ValueError, TypeError), match="timeout"):
            locks.once("x").run(lambda: 1, timeout)
        assert locks.once("x").outcome() is None


def test_shutdown_during_the_work_is_no_failure_of_the_work() -> None:
    """Work that takes a lease while its own Locks is drained: another does it, at once."""
    name = uuid.uuid4().hex
    with leasehold.connect(f"memory://{name}") as locks, leasehold.connect(f"memory://{name}") as other:
        drain = threading.Thread(target=locks.drain)

        def work() -> None:
            drain.start()
            ends = time.monotonic() + 30
            while time.monotonic() < ends:  # until the drain has begun
                locks.lock("inner").acquire().release()

        with pytest.raises(leasehold.ShuttingDown):
            locks.once(name).run(work)
        drain.join()
        outcome = other.once(name).run(lambda: "done")
        assert (outcome.ran, outcome.result, outcome.attempts) == (True, "done", 1)


@pytest.mark.parametrize("away", [False, True])
async def test_loss_under_the_work_is_raised(side: str, away: bool) -> None:
    """The work does not run again and again for a caller whose lease is lost each time, a function that blocks."""
    there = Side(side)
    runs: list[int] = []

    def block() -> None:
        runs.append(leasehold.current().token)
        with leasehold.connect(there.store.url) as other:
            assert other.break_lease("x", force=True)
        if away:
            there.network.lose_request("read_note")

    with pytest.raises(leasehold.LeaseLost):
        await there.call(there.locks.once("x").run, block)
    assert len(runs) == 1
    there.network.mend()
    assert (await there.call(there.locks.once("x").run, lambda: "next")).ran
    await there.call(there.locks.close)


@pytest.mark.parametrize("timeout", [None, 60])
async def test_reads_of_outcomes_that_got_lost_are_tried_again(side: str, timeout: float | None) -> None:
    """By whoever waits: before it stands for the lease, when it has it, and when it forgets what was done."""
    there = Side(side)
    once = there.locks.once("x")
    there.network.lose_request("read_note", times=2)
    there.store.after["acquire"] = lambda: there.network.lose_answer("read_note", times=1)
    outcome = await there.call(once.run, lambda: "done", timeout)
    assert (outcome.result, outcome.ran) == ("done", True)
    there.network.lose_request("read_note", times=1)
    assert not (await there.call(once.run, lambda: "again", timeout)).ran
    assert await there.call(once.forget)
    await there.call(there.locks.close)


@pytest.mark.parametrize(("options", "timeout"), [({"wait": False}, None), ({}, 0)])
async def test_once_that_does_not_wait_asks_a_lost_store_a_single_time(
    side: str, options: Any, timeout: float | None
) -> None:
    there = Side(side)
    once = there.locks.once("x", **options)
    there.network.lose_request("read_note")
    with pytest.raises(leasehold.StoreUnavailable):
        await there.call(once.run, lambda: "done", timeout)
    assert there.network.calls["read_note"] == 1
    await there.call(there.locks.close)


@pytest.mark.parametrize("timeout", [None, 0.5])
async def test_reads_of_outcomes_end_as_an_acquire_would(
    side: str, timeout: float | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as an acquire would be: until the timeout, without one for a time of unbroken failure."""
    monkeypatch.setattr("leasehold.core.timing.UNAVAILABLE_LIMIT", 0.5)
    there = Side(side)
    there.network.lose_request("read_note")
    with pytest.raises(
        leasehold.StoreUnavailable, match=r"cannot read the outcomes of 'x', tried \d+ times in 0\.\d+ s: "
    ):
        await there.call(there.locks.once("x").run, lambda: "done", timeout)
    assert there.network.calls["acquire"] == 0
    (record,) = [each for each in caplog.records if getattr(each, "lease_event", "") == "unavailable"]
    assert "; retrying for up to 0." in record.getMessage(), "it is not silent meanwhile"
    await there.call(there.locks.close)


async def test_lease_that_was_lost_while_nothing_could_be_read_is_not_used(side: str) -> None:
    there = Side(side)
    tokens: list[int] = []
    lost: list[int | None] = []

    def lose_the_first() -> None:
        """Once it is granted. Nothing can be read until its holder knows of the loss."""
        there.store.after.clear()
        there.network.lose_request("read_note")
        with leasehold.connect(there.store.url) as other:
            assert other.break_lease("x", force=True)

    def hear(event: leasehold.Event) -> None:
        if event.type == "lost":
            lost.append(event.token)
            there.network.mend()

    there.locks.on_event(hear)
    there.store.after["acquire"] = lose_the_first
    outcome = await there.call(there.locks.once("x").run, lambda: tokens.append(leasehold.current().token))
    assert (outcome.ran, [outcome.token]) == (True, tokens)
    assert len(lost) == 1
    assert lost != tokens
    await there.call(there.locks.close)
