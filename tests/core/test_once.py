"""``once`` against a simple model: random runs, failures, holders that are overtaken, and forgetting."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import leasehold
from leasehold import aio
from leasehold.errors import StoreNotReady
from leasehold.once import LONGEST_NOTE, Outcome, TooManyOutcomes, dump, load, write
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
        if not done and attempts <= retries:
            calls, owner = overtaken, self.locks[who].owner
            while not done and attempts <= retries:
                calls, attempts = calls + 1, attempts + 1
                done, left = left == 0, max(0, left - 1)
            self.model[version] = (done, attempts, owner)
        before = self.calls
        once = self.locks[who].once("work", version=version, retries=retries, retry_by="same" if same else "any")
        outcome = once.run(self.work(fails, overtaken))
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


def test_a_note_of_a_newer_leasehold_is_refused() -> None:
    with pytest.raises(StoreNotReady, match="newer"):
        load("x", '{"format":2,"outcomes":{}}')


def recorded(versions: int, **fields: Any) -> dict[str, Outcome]:
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
    text = dump("x", outcomes)
    assert text is not None
    assert len(text) <= LONGEST_NOTE
    kept = load("x", text)
    assert kept.keys() == outcomes.keys()
    assert {(each.status, each.attempts) for each in kept.values()} == {("failed", 3)}
    newest = sorted(kept, key=int)[-whole:]
    assert all(kept[version].owner == "owner" for version in newest)
    assert kept[newest[-1]].error == "e" * 2000
    assert f"results and errors of {sum(each.error is None for each in kept.values())} versions" in caplog.text
    caplog.clear()
    assert load("x", dump("x", kept)) == kept
    assert "dropped" not in caplog.text, "it is told once"


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_what_could_not_be_recorded_is_not_run(side: str) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    full = {f"{number}{'v' * 50}": each for number, each in enumerate(recorded(900).values())}
    with leasehold.connect(url) as locks:
        with locks.lock("x") as lease:
            locks._core.drive(write(locks._core, lease, full))
        assert len(load("x", locks._core.driver.run(locks._core.store.read_note("x"), 1.0))) == 900
        calls: list[int] = []

        async def run() -> None:
            async with aio.connect(url) as others:
                await others.once("x", version="new").run(lambda: calls.append(1))

        with pytest.raises(TooManyOutcomes, match="forget"):  # noqa: PT012
            if side == "threads":
                locks.once("x", version="new").run(lambda: calls.append(1))
            else:
                asyncio.run(run())
        assert not calls
        assert not locks.once("x", version=f"0{'v' * 50}").run(lambda: calls.append(1)).ran
        assert locks.once("x").forget(every_version=True)
        assert locks.once("x", version="new").run(lambda: calls.append(1)).ran


def test_a_result_that_is_not_recorded_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with leasehold.connect(f"memory://{uuid.uuid4().hex}") as locks:
        assert locks.once("x", version=1).run(lambda: "r" * 20_000).ok
        assert "the result of 'x' version 1 is not recorded" in caplog.text
        caplog.clear()
        assert locks.once("x", version=2).run(lambda: "r" * 10_000).ok
        assert "not recorded" not in caplog.text


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_defaults_of_connect_that_are_meant_for_locks(side: str) -> None:
    """A timeout, max_hold, min_hold or beat_every of connect() would end a term, a membership or the work."""
    options: dict[str, Any] = {"timeout": 0.1, "max_hold": 0.3, "min_hold": 0.2, "beat_every": 0.1, "ttl": 9}
    locks: Any = (leasehold if side == "threads" else aio).connect(f"memory://{uuid.uuid4().hex}", **options)
    for made in (locks.once("x")._lock, locks.election("y"), locks.group("z")):
        spec = made._spec
        timing = spec.timing
        assert (spec.timeout, timing.max_hold, timing.min_hold, timing.beat_every) == (None, None, 0.0, None)
    assert locks.once("x")._lock._spec.timing.ttl == 9
    assert locks.semaphore("s", limit=2)._spec.timeout == 0.1


async def test_a_cancelled_run_records_nothing() -> None:
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


def test_an_interrupted_run_records_nothing() -> None:
    def press() -> None:
        raise KeyboardInterrupt

    with leasehold.connect(f"memory://{uuid.uuid4().hex}") as locks:
        with pytest.raises(KeyboardInterrupt):
            locks.once("x").run(press)
        assert locks.once("x").outcome() is None
        assert locks.inspect("x") is None


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_what_is_done_in_the_same_moment_is_not_told_as_running(side: str) -> None:
    """``wait=False``: another was at it when it was tried, and has recorded its outcome since."""
    url = f"memory://{uuid.uuid4().hex}"
    with leasehold.connect(url, owner="other") as other:

        def while_busy(once: Any) -> None:
            """The try finds the name taken; then it is done by another before the next question."""
            store = once._core.store
            inspect = store.inspect

            def ended(name: str) -> Any:
                busy.release()
                assert other.once("x").run(lambda: "done").ran
                return inspect(name)

            busy = other.lock("x").acquire()
            store.inspect = ended

        async def run() -> Any:
            async with aio.connect(url) as locks:
                once = locks.once("x", wait=False)
                while_busy(once)
                return await once.run(lambda: "again")

        if side == "threads":
            with leasehold.connect(url) as locks:
                once = locks.once("x", wait=False)
                while_busy(once)
                outcome = once.run(lambda: "again")
        else:
            outcome = asyncio.run(run())
        assert (outcome.status, outcome.owner, outcome.result, outcome.ran) == ("done", "other", "done", False)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5"])
def test_a_timeout_that_is_none(timeout: Any) -> None:
    async def run() -> None:
        async with aio.connect(f"memory://{uuid.uuid4().hex}") as locks:
            await locks.once("x").run(lambda: 1, timeout)

    with pytest.raises((ValueError, TypeError), match="timeout"):
        asyncio.run(run())
    with leasehold.connect(f"memory://{uuid.uuid4().hex}") as locks:
        with pytest.raises((ValueError, TypeError), match="timeout"):
            locks.once("x").run(lambda: 1, timeout)
        assert locks.once("x").outcome() is None


def test_a_shutdown_in_the_middle_is_no_failure_of_the_work() -> None:
    """Work that takes a lease while its own Locks is drained: another does it, at once."""
    name = uuid.uuid4().hex
    with leasehold.connect(f"memory://{name}") as locks, leasehold.connect(f"memory://{name}") as other:

        def work() -> None:
            locks._core.draining = "this Locks is being drained"
            locks.lock("inner").acquire()

        with pytest.raises(leasehold.ShuttingDown):
            locks.once(name).run(work)
        outcome = other.once(name).run(lambda: "done")
        assert (outcome.ran, outcome.result, outcome.attempts) == (True, "done", 1)


class Side:
    """A ``once`` of threads or of tasks, used alike, behind a network that can lose what it asks."""

    def __init__(self, side: str, **options: Any) -> None:
        self.threads = side == "threads"
        self.locks: Any = (leasehold if self.threads else aio).connect(f"memory://{uuid.uuid4().hex}")
        self.network = faults.install(self.locks)
        self.once: Any = self.locks.once("x", **options)

    def when_had(self, do: Callable[[Any], object]) -> None:
        """Call ``do(lease)`` as soon as there is a lease."""
        core = self.locks._core
        add = core.add

        def added(lease: Any) -> None:
            add(lease)
            do(lease)

        core.add = added

    async def call(self, function: Any, *args: Any) -> Any:
        return await (asyncio.to_thread(function, *args) if self.threads else function(*args))


@pytest.fixture(params=["threads", "asyncio"])
def side(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("timeout", [None, 60])
async def test_reads_that_got_lost_are_tried_again(side: str, timeout: float | None) -> None:
    """By whoever waits: before it stands for the lease, when it has it, and when it forgets what was done."""
    there = Side(side)
    there.network.lose_request("read_note", times=2)
    there.when_had(lambda lease: there.network.lose_answer("read_note", times=1))
    outcome = await there.call(there.once.run, lambda: "done", timeout)
    assert (outcome.result, outcome.ran) == ("done", True)
    there.network.lose_request("read_note", times=1)
    assert not (await there.call(there.once.run, lambda: "again", timeout)).ran
    assert await there.call(there.once.forget)
    await there.call(there.locks.close)


@pytest.mark.parametrize(("options", "timeout"), [({"wait": False}, None), ({}, 0)])
async def test_who_does_not_wait_does_not_wait_for_the_store(side: str, options: Any, timeout: float | None) -> None:
    there = Side(side, **options)
    there.network.lose_request("read_note")
    with pytest.raises(leasehold.StoreUnavailable):
        await there.call(there.once.run, lambda: "done", timeout)
    assert there.network.calls["read_note"] == 1
    await there.call(there.locks.close)


@pytest.mark.parametrize("timeout", [None, 0.5])
async def test_reads_are_not_tried_for_ever(side: str, timeout: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as an acquire would be: until the timeout, without one for a time of unbroken failure."""
    monkeypatch.setattr("leasehold.policy.UNAVAILABLE_LIMIT", 0.5)
    there = Side(side)
    there.network.lose_request("read_note")
    with pytest.raises(leasehold.StoreUnavailable):
        await there.call(there.once.run, lambda: "done", timeout)
    assert there.network.calls["acquire"] == 0
    await there.call(there.locks.close)


async def test_a_lease_that_was_lost_while_nothing_could_be_read_is_not_used(side: str) -> None:
    there = Side(side)
    tokens: list[int] = []

    def lose_the_first(lease: Any) -> None:
        if there.network.calls["acquire"] == 1:
            there.network.lose_request("read_note", times=1)
            there.locks._core.lose(lease, "as its keeper would hear")

    there.when_had(lose_the_first)
    outcome = await there.call(there.once.run, lambda: tokens.append(leasehold.current().token))
    assert (outcome.ran, [outcome.token]) == (True, tokens)
    assert there.network.calls["acquire"] > 1
    await there.call(there.locks.close)
