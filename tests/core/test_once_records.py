"""What ``once`` records lasts: details of the last versions, marks of all others, moved between notes without a gap."""

from __future__ import annotations

import asyncio
import functools
import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import leasehold
from intercept import Intercepted
from leasehold.errors import StoreNotReady
from leasehold.kinds.once import archive, slots
from leasehold.kinds.once.note import LONGEST_NOTE, Note, dump, load
from leasehold.kinds.once.outcome import OnceFailed, TooManyOutcomes, bare
from leasehold.testing import faults


class Side:
    """A ``Locks`` of threads or of tasks, used alike."""

    def __init__(self, side: str, url: str | None = None) -> None:
        self.threads = side == "threads"
        self.store = Intercepted(url or f"memory://{uuid.uuid4().hex}")
        self.locks: Any = self.store.connect(side, owner="me")

    async def call(self, function: Any, *args: Any, **options: Any) -> Any:
        if self.threads:
            return await asyncio.to_thread(function, *args, **options)
        return await function(*args, **options)

    async def run(self, version: object, function: Callable[[], Any] = lambda: "done", **options: Any) -> Any:
        return await self.call(self.locks.once("x", version=version, **options).run, function)

    def note(self, name: str = "x") -> str | None:
        found: str | None = self.store.run(lambda sent: sent.read_note(name))
        return found

    def write(self, text: str | None, name: str = "x") -> None:
        """As an enemy would, or an earlier version of leasehold."""
        with self.store.connect() as others, others.lock(name).acquire(timeout=30) as lease:
            assert self.store.run(lambda sent: sent.write_note(name, self.store.attempt(name), lease.token, text))


@pytest.fixture(params=["threads", "asyncio"])
def side(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks move from the first on."""
    monkeypatch.setattr(archive, "MOST_MARKS", 0)


def marks(count: int, width: int = 0) -> dict[str, Any]:
    return {f"{number:0{width}}": bare("x", f"{number:0{width}}", "done", 1) for number in range(count)}


@pytest.mark.timeout(300)
async def test_versions_that_were_done_stay_known_whatever_their_number(side: str) -> None:
    """2,500 hours are three months of an hourly job. No version is run twice, and no record grows without limit."""
    there, versions = Side(side), 2500 if side == "threads" else 500
    if side == "asyncio":
        there.write(dump("x", Note(marks(500))))  # recorded by an earlier version of leasehold, and moved from now on

    def work() -> int:
        for number in range(versions):
            assert there.locks.once("x", version=f"v{number}", keep=100).run(functools.partial(int, number)).ran
        return max(len(there.note(name) or "") for name in names(there))

    async def work_in_tasks() -> int:
        for number in range(versions):
            assert (await there.locks.once("x", version=f"v{number}", keep=100).run(functools.partial(int, number))).ran
        return max(len(there.note(name) or "") for name in names(there))

    assert await there.call(work if there.threads else work_in_tasks) < LONGEST_NOTE / 2
    history = await there.call(there.locks.once("x").history)
    assert [each.result for each in history] == [*range(versions - 100, versions)]
    others = Side(side, there.store.url)
    for number in range(0, versions, 7):
        outcome = await others.run(f"v{number}")
        assert (outcome.ok, outcome.ran) == (True, False)
    if side == "asyncio":
        for number in range(0, 500, 7):
            assert not (await others.run(number)).ran
    assert await there.call(there.locks.once("x").forget, every_version=True)
    assert not any(there.note(name) for name in names(there))
    for each in (there, others):
        await each.call(each.locks.close)


def names(there: Side) -> list[str]:
    return ["x", *(archive.shard_name("x", number) for number in range(archive.SHARDS))]


async def test_failure_stays_known_without_its_details(side: str, soon: None) -> None:
    there = Side(side)
    with pytest.raises(ZeroDivisionError):
        await there.run("bad", lambda: 1 / 0, keep=1)
    for number in range(3):
        await there.run(number, keep=1)
    assert "bad" not in str(there.note()), "its mark has moved"
    with pytest.raises(OnceFailed, match="'x' version bad failed: its error is no longer recorded") as failed:
        await there.run("bad")
    assert failed.value.outcome.attempts == 1
    again = await there.run("bad", retries=1)
    assert (again.ran, again.ok, again.attempts) == (True, True, 2)
    for number in range(3, 6):
        await there.run(number, keep=1)
    assert (await there.run("bad")).ok, "its newer mark counts"
    await there.call(there.locks.close)


@pytest.mark.parametrize("write", [1, 2, 3, 4])
@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_version_is_neither_run_again_nor_lost_if_a_holder_dies_between_two_writes(
    side: str, soon: None, write: int, lost: str
) -> None:
    """The writes: an outcome; that there is a shard; the shard; the note without the marks that moved."""
    there = Side(side)
    for number in range(2):
        await there.run(number, keep=1)
    writes = 0

    def die() -> None:
        nonlocal writes
        writes += 1
        if writes >= write:
            there.store.before["renew"] = there.store.before["release"] = gone
            gone()

    def gone() -> None:
        raise leasehold.StoreUnavailable("the holder is dead")

    (there.store.before if lost == "request" else there.store.after)["write_note"] = die
    once = there.locks.once("x", version=2, keep=1, ttl=1)
    with suppress(leasehold.LeaseholdError, TimeoutError):
        await asyncio.wait_for(there.call(once.run, lambda: "done", 5), 5)
    assert writes >= write
    others, calls = Side(side, there.store.url), []
    for number in range(2):
        assert not (await others.run(number, lambda: calls.append(1), keep=1)).ran
    last = await others.run(2, lambda: calls.append(1), keep=1)
    assert last.ran == (write == 1 and lost == "request"), "done if it was recorded"
    for number in range(3):
        assert not (await others.run(number, lambda: calls.append(1), keep=1)).ran
    there.store.before.clear()
    there.store.after.clear()
    for each in (others, there):
        await each.call(each.locks.close)


async def test_paused_holder_brings_no_forgotten_version_back(side: str, soon: None) -> None:
    """It was overtaken after it took the shard's lease: the store refuses its next write."""
    there = Side(side)
    await there.run(0, keep=1)
    others = Side("threads", there.store.url)
    shard = archive.shard_name("x", archive.shard_of("0"))

    def overtake() -> None:
        if there.store.asks[-1].name == shard:
            there.store.after.clear()
            assert others.locks.break_lease("x", force=True)
            assert others.locks.break_lease(shard, force=True)
            assert others.locks.once("x", version=0).forget()

    there.store.after["acquire"] = overtake
    await there.run(1, keep=1)
    assert others.locks.once("x", version=0).outcome() is None
    assert others.locks.once("x", version=1).outcome().ok
    assert others.locks.once("x", version=0).run(lambda: "again").ran
    others.locks.close()
    await there.call(there.locks.close)


async def test_marks_stay_where_they_are_if_the_lease_of_their_shard_is_lost(side: str, soon: None) -> None:
    """The store refuses to write the shard, while the name's own lease is still held."""
    there = Side(side)
    await there.run(0, keep=1)
    others = Side("threads", there.store.url)
    shard = archive.shard_name("x", archive.shard_of("0"))

    def take() -> None:
        if there.store.asks[-1].name == shard:
            there.store.after.clear()
            assert others.locks.break_lease(shard, force=True)

    there.store.after["acquire"] = take
    await there.run(1, keep=1)
    assert not there.store.after, "it has tried"
    assert '"0":["done",1]' in str(there.note())
    assert not (await there.run(0)).ran
    others.locks.close()
    await there.call(there.locks.close)


async def test_marks_stay_where_they_are_while_their_shard_is_held(side: str, soon: None) -> None:
    there = Side(side)
    others = Side("threads", there.store.url)
    with others.locks.lock(archive.shard_name("x", archive.shard_of("0"))):
        await there.run(0, keep=1)
        await there.run(1, keep=1)
        assert '"0":["done",1]' in str(there.note())
        for number in range(2, 50):
            await there.run(number, keep=1)
        assert len(load("x", there.note()).marks()) < 20, "others move"
    for number in range(50, 99):
        await there.run(number, keep=1)
    assert '"0":["done",1]' not in str(there.note())
    assert not (await there.run(0)).ran
    others.locks.close()
    await there.call(there.locks.close)


@pytest.mark.parametrize("operation", ["write_note", "read_note", "acquire", "release"])
@pytest.mark.parametrize("place", range(1, 6))
async def test_task_that_is_cancelled_leaves_nothing_behind(soon: None, operation: str, place: int) -> None:
    """At each operation of a run that moves a mark."""
    there, calls = Side("asyncio"), []
    await there.run(0, keep=1)
    task = asyncio.create_task(there.run(1, lambda: calls.append(1), keep=1))
    left = place

    def cancel() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            task.cancel()

    there.store.before[operation] = cancel
    with suppress(asyncio.CancelledError):
        await task
    there.store.before.clear()
    done = await there.call(there.locks.once("x", version=1).outcome)
    begun = len(calls)
    for version in (0, 1, 0):
        outcome = await there.run(version, lambda: calls.append(1), keep=1)
        assert outcome.ok
    assert len(calls) == begun + (done is None)
    assert [each.name async for each in there.locks.leases()] == []
    await there.call(there.locks.close)


def test_version_is_forgotten_wherever_it_is_recorded(soon: None) -> None:
    there = Side("threads")
    for number in range(4):
        there.locks.once("x", version=number, keep=1).run(lambda: "done")
    once = there.locks.once("x")
    assert once.forget(0)
    assert once.forget("3")
    assert not once.forget(0)
    assert [there.locks.once("x", version=number).outcome() is None for number in range(4)] == [
        True,
        False,
        False,
        True,
    ]
    assert once.forget(every_version=True)
    assert not any(there.note(name) for name in names(there))
    there.locks.close()


# What others have written.


async def test_note_of_an_earlier_version_is_read_and_stays_readable_for_it(side: str) -> None:
    """A rolling upgrade: old and new replicas side by side do not run the same version."""
    there = Side(side)
    row = ["done", "old", 5, "2026-01-01T00:00:00+00:00", 1.5, None, 1, "result"]
    there.write(json.dumps({"format": 1, "outcomes": {"1": ["failed", 3], "2": row}}))
    assert (await there.run(2)).result == "result"
    with pytest.raises(OnceFailed):
        await there.run(1)
    await there.run(3)
    note = json.loads(str(there.note()))
    assert (note["format"], [*note], [*note["outcomes"]]) == (1, ["format", "outcomes"], ["1", "2", "3"])
    assert note["outcomes"]["2"] == row
    await there.call(there.locks.close)


async def test_earlier_version_refuses_a_note_that_it_would_misread(side: str, soon: None) -> None:
    """Its format is newer, so an old replica does not run what it does not find there."""
    there = Side(side)
    for number in range(3):
        await there.run(number, keep=1)
    assert json.loads(str(there.note()))["format"] == 2
    await there.call(there.locks.once("y", per="hour").run, lambda: 1)
    assert json.loads(str(there.note("y")))["format"] == 2
    await there.call(there.locks.close)


DAMAGED = [
    *("{", "[]", "1", '"x"', '{"format":1}', '{"format":2,"outcomes":{},"shards":"g"}', '{"format":0,"outcomes":{}}'),
    '{"format":2,"outcomes":{},"shards":"' + "f" * 65 + '"}',
    *(f'{{"format":2,"outcomes":{{}},"slots":{each}}}' for each in ("1", "[]", '{"last":1}')),
    '{"format":2,"outcomes":{},"slots":{"last":"1","machine":null,"ahead":{},"accepted":null,"outcomes":{}}}',
    '{"format":2,"outcomes":{},"slots":{"last":1,"machine":[1],"ahead":{},"accepted":null,"outcomes":{}}}',
    '{"format":2,"outcomes":{},"slots":{"last":1,"machine":null,"ahead":{},"accepted":"x","outcomes":{}}}',
    '{"format":2,"outcomes":{},"slots":{"last":1,"machine":null,"ahead":{"h":"x"},"accepted":null,"outcomes":{}}}',
    '{"format":2,"outcomes":{},"slots":{"last":1,"machine":null,"ahead":{},"accepted":null,"outcomes":{"x":["done",1]}}}',
    '{"format":1,"outcomes":{"":["done",1]}}',
    '{"format":1,"outcomes":{"1":["over",1]}}',
    '{"format":1,"outcomes":{"1":["done",-1]}}',
]


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["done", "failed"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
row = st.tuples(
    *(st.sampled_from(["done", "failed"]) | odd, st.just("me") | odd, st.integers(0, 9) | odd),
    *(st.sampled_from(["2026-01-01T00:00:00+00:00", "2026-01-01"]) | odd, st.floats(0, 9) | odd, st.none() | odd),
    *(st.integers(0, 9) | odd, odd),
) | st.tuples(st.sampled_from(["done", "failed"]) | odd, st.integers(0, 9) | odd)
slot = st.fixed_dictionaries(
    {
        "last": st.none() | st.integers(0, 9) | odd,
        "machine": st.none() | st.tuples(st.just("boot") | odd, st.integers() | odd) | odd,
        "ahead": st.dictionaries(st.text(max_size=3), st.integers(0, 9) | odd, max_size=2) | odd,
        "accepted": st.none() | st.integers(0, 9) | odd,
        "outcomes": st.dictionaries(st.just("2026-11-19T12:00:00Z") | st.text(max_size=3), row, max_size=2) | odd,
    }
)
foreign = st.fixed_dictionaries(
    {
        "format": st.sampled_from([1, 2, 2]) | odd,
        "outcomes": st.dictionaries(st.text(max_size=3), row, max_size=3) | odd,
    },
    optional={"shards": st.sampled_from(["0", "ff"]) | odd, "slots": slot | odd},
)


@settings(max_examples=300, deadline=None)
@given(stored=foreign | odd)
def test_foreign_note_is_an_error_or_can_be_used(stored: Any) -> None:
    """Whatever an enemy has written: StoreNotReady, or a note that can be listed, changed and written."""
    try:
        note = load("x", json.dumps(stored))
    except StoreNotReady:
        return
    for each in note.history():
        each.as_dict()
    text = dump("x", note.trimmed(1))
    assert load("x", text).trimmed(1) == load("x", dump("x", load("x", text)))
    if note.slots is not None:
        here = slots.this_machine()
        slots.is_believed(note.slots, 3600, 60, 0.0, here)
        assert dump("x", note._replace(slots=slots.refused(note.slots, 60, here)))


@pytest.mark.parametrize("text", DAMAGED)
async def test_damaged_note_is_an_error_about_its_name_alone(side: str, text: str) -> None:
    there = Side(side)
    there.write(text)
    for asked in (there.locks.once("x").run, there.locks.once("x", per="hour").run):
        with pytest.raises(StoreNotReady, match="outcomes of 'x' are damaged"):
            await there.call(asked, lambda: 1)
    for asked in (there.locks.once("x").outcome, there.locks.once("x").history, there.locks.once("x").forget):
        with pytest.raises(StoreNotReady, match="outcomes of 'x' are damaged"):
            await there.call(asked)
    assert (await there.call(there.locks.once("y").run, lambda: 1)).ran
    assert await there.call(there.locks.once("x").forget, every_version=True)
    assert (await there.run(1)).ran
    await there.call(there.locks.close)


@pytest.mark.parametrize(
    "text", ["{", "1", '{"format":1,"of":"y","outcomes":{}}', '{"format":3,"of":"x","outcomes":{}}']
)
async def test_damaged_shard_is_an_error_about_its_versions_alone(side: str, soon: None, text: str) -> None:
    there = Side(side)
    for number in range(3):
        await there.run(number, keep=1)
    there.write(text, archive.shard_name("x", archive.shard_of("0")))
    with pytest.raises(StoreNotReady, match="outcomes of 'x'"):
        await there.run(0)
    assert not (await there.run(1)).ran
    assert (await there.run("new")).ran
    assert await there.call(there.locks.once("x").forget, every_version=True)
    assert (await there.run(0)).ran
    await there.call(there.locks.close)


async def test_everything_is_forgotten_though_the_note_is_damaged(side: str, soon: None) -> None:
    there = Side(side)
    for number in range(3):
        await there.run(number, keep=1)
    there.write("{")
    assert await there.call(there.locks.once("x").forget, every_version=True)
    assert not any(there.note(name) for name in names(there))
    await there.call(there.locks.close)


async def test_full_note_of_an_earlier_version_makes_room(side: str) -> None:
    """It refused every further version. Its marks move, and the next version runs."""
    there = Side(side)
    text = dump("x", Note(marks(900, 54)))
    assert text is not None
    assert len(text) > LONGEST_NOTE
    there.write(text)
    assert (await there.run("new")).ran
    assert not (await there.run(f"{17:054}")).ran
    await there.call(there.locks.close)


async def test_work_whose_outcome_could_not_be_recorded_is_not_run(
    side: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(archive, "LONGEST_NOTE", 100)
    there, calls = Side(side), []
    there.write(dump("x", Note(marks(900, 54))))
    with pytest.raises(TooManyOutcomes, match=r"no room to record another version of 'x'.*forget"):
        await there.run("new", lambda: calls.append(1))
    assert not calls
    assert "no room for further old versions of 'x'" in caplog.text
    assert not (await there.run(f"{17:054}")).ran
    assert await there.call(there.locks.once("x").forget, every_version=True)
    assert (await there.run("new")).ran
    await there.call(there.locks.close)


async def test_slots_and_versions_of_one_name_do_not_meet(side: str) -> None:
    there = Side(side)
    slot = await there.call(there.locks.once("x", per="day").run, lambda: "slot")
    assert (await there.run(slot.version, lambda: "version")).result == "version"
    assert (await there.call(there.locks.once("x", per="day").run, lambda: "again")).result == "slot"
    assert [each.result for each in await there.call(there.locks.once("x").history)] == ["slot", "version"]
    assert load("x", there.note()).slots is not None
    await there.call(there.locks.close)


def test_size_of_marks_is_that_of_the_note() -> None:
    """Versions in other scripts than ASCII take six bytes for a character."""
    for version in ("x", "版", "\U0001f600", '"'):
        marks = {version * each: bare("x", version * each, "done", 1) for each in range(1, 60)}
        note = Note(marks)
        assert archive.size(note) == pytest.approx(len(dump("x", note) or ""), rel=0.05)


async def test_run_that_has_its_outcome_does_not_wait_for_marks_to_move(side: str, soon: None) -> None:
    """The store goes away after the outcome was recorded: each write of the move is tried once."""
    there = Side(side)
    network = faults.install(there.locks)
    await there.run(1, keep=1)
    before = network.calls["write_note"]

    def leave() -> None:
        there.store.after.clear()
        network.lose_request("write_note")

    there.store.after["write_note"] = leave
    assert (await there.run(2, keep=1, ttl=6)).ran
    assert network.calls["write_note"] - before == 2
    network.mend()
    await there.call(there.locks.close)
