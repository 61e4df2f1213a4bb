"""Work that is done once per version: its holder records the outcome, the others read it; a dead holder is replaced."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from ...kinds.once.outcome import OnceFailed
from ..api import Work
from ..counter import Fenced
from ..handles import eventually, times_out
from ..scene import Scene
from .fixtures import needs


@needs("note")
def test_of_three_instances_one_does_the_work(scene: Scene) -> None:
    """A7: three instances start together; one initialises, two wait for it and get the same outcome."""
    name, work = scene.name(), Work({"made": 3})
    everyone = [scene.connect(ttl=30, owner=f"i{number}") for number in range(3)]
    before = datetime.now(UTC)
    jobs = [locks.once(name).start(scene.api.working(work)) for locks in everyone]
    scene.until_waiting(name, 2)
    eventually(lambda: work.tokens)
    skipped = everyone[0].once(name, wait=False).run(scene.api.working(work))
    assert (skipped.status, skipped.token, skipped.ran, skipped.ok) == ("running", work.tokens[0], False, False)
    times_out(lambda: everyone[0].once(name).run(scene.api.working(work), 1.0))
    work.may_end.set()
    outcomes = [job.result() for job in jobs]
    assert len(work.tokens) == 1, "it was done once"
    assert [each.ran for each in outcomes].count(True) == 1
    assert len({each._replace(ran=False, result=None) for each in outcomes}) == 1
    (outcome,) = (each for each in outcomes if each.ran)
    assert (outcome.name, outcome.version, outcome.status, outcome.token) == (name, "1", "done", work.tokens[0])
    assert (outcome.attempts, outcome.error, outcome.ok) == (1, None, True)
    assert [each.result for each in outcomes] == [{"made": 3}] * 3
    assert outcome.owner in {locks.owner for locks in everyone}
    assert before <= outcome.started <= outcome.finished <= datetime.now(UTC)
    assert abs((outcome.finished - outcome.started).total_seconds() - outcome.duration) < 0.01
    later = everyone[2].once(name).run(scene.api.working(work))
    assert later.token == outcome.token
    assert not later.ran
    assert not scene.held(name)


@needs("note")
def test_another_version_is_done_again(scene: Scene) -> None:
    """Reference, once: each version has an outcome; those of older versions stay."""
    locks, name = scene.connect(ttl=30), scene.name()
    first, second = Work(1, True), Work(2, True)
    assert locks.once(name, version=1).run(scene.api.working(first)).result == 1
    assert locks.once(name, version="2").run(scene.api.working(second)).result == 2
    assert locks.once(name, version=1).run(scene.api.working(first)).result == 1
    assert locks.once(name, version=2).outcome().result == 2
    assert locks.once(name, version=3).outcome() is None
    assert (len(first.tokens), len(second.tokens)) == (1, 1)


@needs("note")
def test_a_failure_is_raised_and_recorded(scene: Scene) -> None:
    """Reference, once: where it ran, the exception itself; elsewhere OnceFailed, with what was recorded of it."""
    locks, other, name = scene.connect(ttl=30), scene.connect(ttl=30), scene.name()
    error = KeyError("no such table")
    failing = Work(error, True)
    with pytest.raises(KeyError) as raised:
        locks.once(name).run(scene.api.working(failing))
    assert raised.value is error
    for each in (locks, other):
        with pytest.raises(OnceFailed, match="no such table") as told:
            each.once(name).run(scene.api.working(failing))
        outcome = told.value.outcome
        assert (outcome.status, outcome.attempts, outcome.error) == ("failed", 1, "KeyError: 'no such table'")
        assert (outcome.owner, outcome.ran) == (locks.owner, False)
    assert len(failing.tokens) == 1, "its failure stands"
    assert other.once(name).run(scene.api.working(failing), check=False) == outcome
    assert other.once(name, check=False).run(scene.api.working(failing)) == outcome
    with pytest.raises(OnceFailed):
        other.once(name, check=False).run(scene.api.working(failing), check=True)


@needs("note")
def test_a_failure_is_retried_by_policy(scene: Scene) -> None:
    """Reference, once: tried again at most ``retries`` times, by the next caller or by the same."""
    locks, other, name = scene.connect(ttl=30), scene.connect(ttl=30), scene.name()
    failing = Work(KeyError("no such table"), True)
    assert locks.once(name, check=False).run(scene.api.working(failing)).ran
    again = other.once(name, retries=2, check=False).run(scene.api.working(failing))
    assert (again.status, again.attempts, again.ran, len(failing.tokens)) == ("failed", 3, True, 3)
    failing.result = "at last"
    assert other.once(name, retries=3).run(scene.api.working(failing)).result == "at last"
    same = Work(ValueError("x"), True)
    outcome = locks.once(scene.name(), retries=2, retry_by="same", check=False).run(scene.api.working(same))
    assert outcome.attempts == 3
    assert len(same.tokens) == 3
    assert len(set(same.tokens)) == 1, "by the same holder, under one lease"


@needs("note")
def test_a_holder_that_was_overtaken_records_nothing(scene: Scene) -> None:
    """Promise 3: the work of a holder that lost its lease is done again; both report what the later one recorded."""
    locks, faults = scene.faulty(ttl=30)
    other, name = scene.connect(ttl=30), scene.name()
    slow, quick = Work("slow"), Work("quick", True)
    job = locks.once(name).start(scene.api.working(slow))
    eventually(lambda: slow.tokens)
    next_one = other.once(name).start(scene.api.working(quick))
    scene.until_waiting(name)
    faults.lose_request("acquire")  # so that it is not granted the name again first
    assert other.break_lease(name, force=True)
    outcome = next_one.result()
    assert (outcome.result, outcome.token) == ("quick", quick.tokens[-1])
    faults.mend()
    slow.may_end.set()
    told = job.result()
    assert (told.result, told.token, told.ran) == ("quick", quick.tokens[-1], False)
    assert len(slow.tokens) == 1


@needs("note")
def test_the_store_refuses_the_outcome_of_one_that_was_overtaken(scene: Scene) -> None:
    """Promise 3, S3: a holder that was not notified of its loss, and trusts its lease, cannot record either."""
    locks, faults = scene.faulty(ttl=30)
    other, name = scene.connect(ttl=30), scene.name()
    slow, quick = Work("slow"), Work("quick", True)
    job = locks.once(name).start(scene.api.working(slow))
    eventually(lambda: slow.tokens)
    faults.deaf = True
    faults.lose_request("renew")
    faults.settle()
    assert other.break_lease(name, force=True)
    assert other.once(name).run(scene.api.working(quick)).ran
    slow.may_end.set()
    told = job.result()
    assert (told.result, told.token, told.ran) == ("quick", quick.tokens[0], False)
    assert other.once(name).outcome().result == "quick"
    assert len(slow.tokens) == 1


@needs("note")
def test_outcomes_are_kept_until_forgotten(scene: Scene) -> None:
    """Reference, once: forget() makes it run again; of this version, or of all."""
    locks, name, work = scene.connect(ttl=30), scene.name(), Work(0, True)
    once = [locks.once(name, version=version) for version in (1, 2, 3)]
    assert once[0].forget() is False
    for each in once:
        each.run(scene.api.working(work))
    assert once[0].forget() is True
    assert [each.outcome() is None for each in once] == [True, False, False]
    assert once[0].run(scene.api.working(work)).ran
    assert once[0].forget(every_version=True) is True
    assert [each.outcome() for each in once] == [None] * 3
    assert len(work.tokens) == 4
    assert not scene.held(name)


@needs("note")
def test_results_that_cannot_be_stored_stay_with_their_runner(scene: Scene) -> None:
    """Results that are not JSON, or too long, are not recorded; long errors are cut; many versions fit."""
    locks, name = scene.connect(ttl=30), scene.name()
    for version, result in ((1, object()), (2, "x" * 20_000)):
        once = locks.once(name, version=version)
        assert once.run(scene.api.working(Work(result, True))).result is result
        assert once.outcome().result is None
    failing = scene.api.working(Work(ValueError("é" * 9000), True))
    assert len(locks.once(name, version=3, check=False).run(failing).error) <= 2000
    for version in range(4, 9):
        locks.once(name, version=version).run(scene.api.working(Work("y" * 15_000, True)))
    kept = [locks.once(name, version=version).outcome() for version in range(1, 9)]
    assert [each.version for each in kept] == [str(version) for version in range(1, 9)]
    assert kept[-1].result == "y" * 15_000
    assert kept[3].result is None, "old results make room"


def test_wrong_options_of_once(scene: Scene) -> None:
    locks = scene.connect()
    if "note" in scene.store.lacks:
        with pytest.raises(ValueError, match="once"):
            locks.once("x")
        return
    for wrong in (
        {"retries": -1},
        {"retries": 1.5},
        {"retry_by": "me"},
        {"version": ""},
        {"version": "x" * 65},
        {"on_lost": "raise"},
        {"per": "fortnight"},
        {"per": 0},
        {"per": 1.5},
        {"per": "hour", "version": 1},
        {"keep": 0},
        {"keep": 1.5},
        {"check": 1},
    ):
        with pytest.raises((ValueError, TypeError)):
            locks.once("x", **wrong)


@needs("shared", "note")
@pytest.mark.slow
def test_a_worker_that_was_killed_is_replaced(scene: Scene, tmp_path: Path) -> None:
    """Reference, once: a holder that dies during the work is replaced; the effect happens once."""
    name, path = scene.name(), tmp_path / "counter"
    Fenced(path).create()
    processes = [scene.process() for _ in range(3)]
    gate = tmp_path / "gate"
    # A long ttl, so that it is not lost while the other processes start.
    options = {"name": name, "path": str(path), "gate": str(gate), "ttl": 4 * scene.steady}
    processes[0].send("work", **options)
    scene.until_held(name)
    for process in processes[1:]:
        process.send("work", **options)
    scene.until_waiting(name, 2)
    processes[0].kill()
    gate.touch()
    outcomes = [process.answer() for process in processes[1:]]
    assert len({each["token"] for each in outcomes}) == 1
    assert [each["result"] for each in outcomes] == [[0, True]] * 2
    assert Fenced(path).read()["value"] == 1


@needs("note")
def test_an_answer_that_is_lost_while_recording(scene: Scene) -> None:
    """S4: the outcome is recorded all the same, once, and the work is not done again."""
    locks, faults = scene.faulty(ttl=30)
    name, work = scene.name(), Work("x", True)
    faults.lose_answer("write_note", times=2, noticed_after=0.05)
    outcome = locks.once(name).run(scene.api.working(work))
    assert (outcome.status, outcome.attempts, len(work.tokens)) == ("done", 1, 1)
    assert locks.once(name).outcome().attempts == 1


@needs("note")
def test_details_of_the_last_versions_are_kept(scene: Scene) -> None:
    """Reference, once: ``keep`` bounds details, the oldest go first; what was done is not done again."""
    locks, other, name = scene.connect(ttl=30), scene.connect(ttl=30), scene.name()
    for version in range(5):
        assert locks.once(name, version=version, keep=2).run(scene.api.working(Work(version, True))).ran
    assert [(each.version, each.result, each.ok) for each in other.once(name).history()] == [
        ("3", 3, True),
        ("4", 4, True),
    ]
    for version in range(5):
        outcome = other.once(name, version=version, keep=2).run(scene.api.working(Work("again", True)))
        assert (outcome.status, outcome.ran, outcome.started is None) == ("done", False, version < 3)
    assert other.once(name).forget(0)
    assert not other.once(name).forget(0)
    assert other.once(name, version=0).run(scene.api.working(Work("again", True))).result == "again"


@needs("note")
def test_a_slot_of_time_is_done_once(scene: Scene) -> None:
    """Reference, once: with ``per``, the version is the slot of time; each slot is done once."""
    locks, other, name = scene.connect(ttl=30), scene.connect(ttl=30), scene.name()
    before = datetime.now(UTC)
    outcomes = [each.once(name, per=3600).run(scene.api.working(Work("x", True))) for each in (locks, other)]
    slots = {moment.strftime("%Y-%m-%dT%H:00:00Z") for moment in (before, datetime.now(UTC))}
    assert {each.version for each in outcomes} <= slots
    assert [each.ran for each in outcomes] == [True, outcomes[0].version != outcomes[1].version]
    assert [each.version for each in other.once(name).history()] == sorted({each.version for each in outcomes})
    assert other.once(name, per="hour").outcome().ok
    assert other.once(name, per="hour").forget()
    assert other.once(name, per="hour").run(scene.api.working(Work("y", True))).result == "y"
