"""``once(per=…)``: a slot of time is done once, by the store's clock. Without one, callers' clocks are doubted."""

from __future__ import annotations

import asyncio
import threading
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio
from leasehold.core import clock
from leasehold.kinds.once import slots
from leasehold.kinds.once.outcome import OnceFailed
from leasehold.stores import memory

HOUR, DAY = 3600, 86_400
NOON = 1_795_089_600
"""2026-11-19T12:00:00Z."""


class Clock:
    """The wall clock of one machine."""

    def __init__(self) -> None:
        self.now = float(NOON)

    def __call__(self) -> int:
        return int(self.now * 1e6)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The wall clock of this process."""
    found = Clock()
    monkeypatch.setattr(clock, "wall_us", found)
    return found


@pytest.fixture(params=["threads", "asyncio"])
def side(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Job:
    """``once(per=…)`` of threads or of tasks; says in ``runs`` which slots it ran."""

    def __init__(self, side: str, url: str, per: Any = "hour", **options: Any) -> None:
        self.side, self.url, self.options = side, url, {"per": per, **options}
        self.runs: list[str] = []

    def run(self, fails: bool = False) -> Any:
        outcome = self.call("run", lambda: 1 // (not fails))
        if outcome.ran:
            self.runs.append(outcome.version[11:16])
        return outcome

    def call(self, method: str, *args: Any) -> Any:
        if self.side == "threads":
            with leasehold.connect(self.url) as locks:
                return getattr(locks.once("x", **self.options), method)(*args)

        async def call() -> Any:
            async with aio.connect(self.url) as locks:
                return await getattr(locks.once("x", **self.options), method)(*args)

        return asyncio.run(call())


@pytest.fixture
def server() -> tuple[str, Clock]:
    """The URL of a store with a clock, and that clock."""
    name, now = uuid.uuid4().hex, Clock()
    memory._tables[name] = memory.Table(wall_us=now)
    return f"memory://{name}", now


@pytest.mark.parametrize(
    ("per", "begins", "ends"),
    [
        ("minute", "2026-11-19T13:34:00Z", 24),
        ("hour", "2026-11-19T13:00:00Z", 24 + 25 * 60),
        ("day", "2026-11-19T00:00:00Z", 24 + 25 * 60 + 10 * HOUR),
        (timedelta(minutes=90), "2026-11-19T13:30:00Z", 24 + 85 * 60),
        ("2h", "2026-11-19T12:00:00Z", 24 + 25 * 60),
    ],
)
def test_slot_begins_at_a_multiple_of_its_length_in_utc(
    side: str, server: tuple[str, Clock], per: Any, begins: str, ends: int
) -> None:
    url, now = server
    now.now = NOON + HOUR + 34 * 60 + 36
    job = Job(side, url, per)
    first = job.run()
    assert (first.version, first.ran) == (begins, True)
    now.now += ends - 1
    assert (job.run().version, len(job.runs)) == (begins, 1)
    now.now += 1
    assert (job.run().version > begins, len(job.runs)) == (True, 2)
    assert [each.version for each in job.call("history")] == [begins, job.call("outcome").version]


def test_slot_is_by_the_clock_of_the_store(side: str, server: tuple[str, Clock], wall: Clock) -> None:
    """A caller's clock does not count, and a gap is no matter."""
    url, now = server
    wall.now = 0
    job = Job(side, url)
    for hour in (0, 1, 1, 30, 30, 31):
        now.now = NOON + hour * HOUR
        job.run()
        wall.now += 10 * DAY
    assert job.runs == ["12:00", "13:00", "18:00", "19:00"]


def test_clock_that_goes_back_repeats_no_slot(side: str, server: tuple[str, Clock]) -> None:
    url, now = server
    job = Job(side, url)
    job.run()
    now.now -= 1
    outcome = job.run()
    assert (outcome.version, outcome.ran) == ("2026-11-19T12:00:00Z", False)
    assert job.runs == ["12:00"]


def test_failed_slot_is_retried_by_policy_while_it_lasts(side: str, server: tuple[str, Clock]) -> None:
    url, now = server
    job = Job(side, url, retries=1)
    with pytest.raises(ZeroDivisionError):
        Job(side, url).run(fails=True)
    with pytest.raises(OnceFailed, match="version 2026-11-19T12:00:00Z failed: ZeroDivisionError"):
        Job(side, url).run()
    assert job.run().attempts == 2
    now.now += HOUR
    assert job.run().attempts == 1


def test_last_slots_keep_their_details(side: str, server: tuple[str, Clock]) -> None:
    url, now = server
    job = Job(side, url, keep=3)
    for _ in range(10):
        job.run()
        now.now += HOUR
    assert [each.version[11:13] for each in job.call("history")] == ["19", "20", "21"]
    assert all(each.owner and each.duration is not None for each in job.call("history"))
    assert len(leasehold_note(url)) < 1000, "older slots take no room"


def leasehold_note(url: str) -> str:
    table = memory._tables[url.partition("://")[2]]
    return str(table.notes["", "x"])


def test_waiter_gets_the_outcome_of_the_slot_that_it_came_in(server: tuple[str, Clock]) -> None:
    url, now = server
    begun, may_end = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        assert may_end.wait(30)
        return "first"

    results: list[Any] = []
    with leasehold.connect(url) as locks:
        threads = [threading.Thread(target=lambda: results.append(locks.once("x", per="hour").run(work)))]
        threads[0].start()
        assert begun.wait(30)
        skipped = locks.once("x", per="hour", wait=False).run(work)
        assert (skipped.status, skipped.version) == ("running", "2026-11-19T12:00:00Z")
        threads.append(threading.Thread(target=lambda: results.append(locks.once("x", per="hour").run(work))))
        threads[1].start()
        while not sum(each.waiters or 0 for each in locks.leases()):
            pass
        now.now += HOUR
        may_end.set()
        for thread in threads:
            thread.join(30)
        assert [(each.version[11:13], each.result) for each in results] == [("12", "first")] * 2
        assert sorted(each.ran for each in results) == [False, True]


def test_slot_that_passed_while_its_caller_waited_is_not_run(server: tuple[str, Clock]) -> None:
    """The one who was at work has died; the present slot is run instead."""
    url, now = server
    with leasehold.connect(url) as locks, leasehold.connect(url) as dying:
        lease = dying.lock("x").acquire()
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(locks.once("x", per="hour").run(lambda: 1)))
        thread.start()
        while not sum(each.waiters or 0 for each in locks.leases()):
            pass
        now.now += HOUR
        lease.release()
        thread.join(30)
        assert [(each.version[11:13], each.ran) for each in results] == [("13", True)]


def test_forgotten_slot_runs_again(side: str, server: tuple[str, Clock]) -> None:
    url, now = server
    job = Job(side, url)
    for _ in range(2):
        job.run()
        now.now += HOUR
    now.now -= HOUR
    assert job.call("forget")
    assert not job.call("forget")
    assert job.run().ran
    assert job.call("forget", "2026-11-19T12:00:00Z")
    assert [each.version[11:13] for each in job.call("history")] == ["13"]
    assert not job.run().ran
    assert job.runs == ["12:00", "13:00", "13:00"]


@pytest.mark.parametrize("keep", [1, 2, 100])
def test_only_the_forgotten_slot_runs_again(side: str, server: tuple[str, Clock], keep: int) -> None:
    """Though details of the slot before it are no longer kept."""
    url, now = server
    job = Job(side, url, keep=keep)
    for _ in range(4):
        job.run()
        now.now += HOUR
    now.now -= HOUR
    assert job.call("forget")
    now.now -= HOUR
    outcome = job.run()
    assert (outcome.version[11:13], outcome.status, outcome.ran) == ("14", "done", False)
    now.now += HOUR
    assert job.run().ran
    assert job.runs == ["12:00", "13:00", "14:00", "15:00", "15:00"]


def test_work_that_waits_for_a_clock_is_warned_of(
    side: str, server: tuple[str, Clock], caplog: pytest.LogCaptureFixture
) -> None:
    """The clock was a month ahead when the last slot was recorded, and was put right."""
    url, now = server
    job = Job(side, url)
    job.run()
    now.now += 30 * DAY
    job.run()
    now.now -= HOUR
    assert not job.run().ran
    assert not caplog.text, "clocks may differ by a slot"
    now.now -= 30 * DAY - 2 * HOUR
    assert not job.run().ran
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    text = "'x': the last slot, 2026-12-19T12:00:00Z, is 29 days, 23:00:00 ahead of this clock, and no other runs"
    assert text in record.getMessage()
    assert "once('x').forget('2026-12-19T12:00:00Z')" in record.getMessage()
    job.call("forget", "2026-12-19T12:00:00Z")
    assert job.run().ran
    assert len(caplog.records) == 1


# Without a clock of the store: SQLite.


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'leases.db'}"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, wall: Clock) -> dict[str, Any]:
    """The machine of whoever runs next: its boot id, and how long ago it was booted."""
    here: dict[str, Any] = {"boot": "a", "booted": 0}
    monkeypatch.setattr(
        slots, "this_machine", lambda: slots.Machine(here["boot"], int((wall.now - here["booted"]) * 1e6))
    )
    return here


def test_gap_is_believed_if_the_clock_since_boot_has_gone_on_alike(
    side: str, file: str, wall: Clock, machine: dict[str, Any]
) -> None:
    """A laptop that was closed for a night."""
    job = Job(side, file)
    for hours in (1, 9, 60):
        assert job.run().ran
        wall.now += hours * HOUR
        machine["booted"] += hours * HOUR
    assert job.run().ran
    assert len(job.runs) == 4


@pytest.mark.parametrize("boot", ["b", ""], ids=["another machine, or boot", "no boot id"])
def test_gap_is_doubted_by_a_machine_that_did_not_record_the_last_slot(
    side: str, file: str, wall: Clock, machine: dict[str, Any], boot: str
) -> None:
    """Its host name proves nothing: many are named localhost."""
    machine.update(boot=boot and "a")
    job = Job(side, file)
    job.run()
    wall.now += 60 * HOUR
    machine.update(boot=boot)
    assert job.run().status == "refused"


def test_clock_that_was_set_far_ahead_is_refused_with_a_warning(
    side: str, file: str, wall: Clock, machine: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(side, file)
    job.run()
    wall.now += HOUR
    assert job.run().ran, "the successor is run in any case"
    assert not caplog.text
    wall.now += 24 * HOUR
    outcome = job.run()
    assert (outcome.status, outcome.ok, outcome.ran, outcome.version) == (
        "refused",
        False,
        False,
        "2026-11-20T13:00:00Z",
    )
    assert "'x' slot 2026-11-20T13:00:00Z is refused: the last slot is 2026-11-19T13:00:00Z" in caplog.text
    wall.now -= 23 * HOUR
    assert job.run().ran, "the clock was set right, and no slot is missed"
    assert job.runs == ["12:00", "13:00", "14:00"]


def test_clock_that_was_put_right_is_believed_after_a_slot(
    side: str, file: str, wall: Clock, machine: dict[str, Any]
) -> None:
    """It was days behind when the last slot was recorded."""
    job = Job(side, file)
    job.run()
    wall.now += 60 * HOUR
    for _ in range(2):
        assert job.run().status == "refused"
        wall.now += HOUR
        machine["booted"] += HOUR
    assert job.run().ran
    wall.now += 24 * HOUR
    machine["booted"] += 24 * HOUR
    assert job.run().ran


def test_drift_lets_a_slot_run_that_much_earlier(file: str, wall: Clock, machine: dict[str, Any]) -> None:
    """It is added to the start of the successor."""
    job = Job("threads", file, per=60, drift=10, ttl=90)
    job.run()
    wall.now += 120
    assert job.run().status == "refused"
    assert Job("threads", file, per=60, drift=10, ttl=90).run().status == "refused"
    wall.now -= 60
    assert job.run().ran
    job = Job("threads", file, per=5, drift=10, ttl=90)
    wall.now += 15
    assert job.run().ran, "the third slot begins 10 s after the start of the successor"


def test_other_host_confirms_a_gap(side: str, file: str, wall: Clock, machine: dict[str, Any]) -> None:
    job = Job(side, file)
    job.run()
    wall.now += 60 * HOUR
    machine.update(boot="b", booted=9)
    assert job.run().status == "refused"
    assert job.run().status == "refused"
    machine.update(boot="c", booted=99)
    assert job.run().ran


def test_host_whose_clock_is_wrong_confirms_no_other(
    side: str, file: str, wall: Clock, machine: dict[str, Any]
) -> None:
    job = Job(side, file)
    job.run()
    for ahead, boot in ((240, "b"), (48, "c"), (240, "b")):
        wall.now = NOON + ahead * HOUR
        machine.update(boot=boot)
        assert job.run().status == "refused"
    wall.now = NOON + HOUR
    machine.update(boot="d")
    assert job.run().ran
    wall.now = NOON + 241 * HOUR
    machine.update(boot="b")
    assert job.run().status == "refused", "the record has moved on since"


def test_gap_is_believed_when_a_slot_has_passed_since_its_refusal(
    side: str, file: str, wall: Clock, machine: dict[str, Any]
) -> None:
    """If nobody has recorded a slot in the meantime, there is nobody whom a wrong clock could harm."""
    job = Job(side, file)
    job.run()
    machine.update(boot="b")
    wall.now += 60 * HOUR
    for _ in range(2):
        assert job.run().status == "refused"
        wall.now += HOUR
    assert job.run().ran


def test_host_that_is_ahead_is_not_believed_while_others_are_at_work(
    side: str, file: str, wall: Clock, machine: dict[str, Any]
) -> None:
    """Whichever comes first in an hour."""
    job = Job(side, file)
    job.run()
    for hour in range(1, 7):
        for boot in ("a", "b") if hour % 2 else ("b", "a"):
            machine.update(boot=boot)
            wall.now = NOON + (hour + 24 * (boot == "b")) * HOUR
            assert job.run().status == ("done" if boot == "a" else "refused")
    assert len(job.runs) == 7


def test_refused_slot_that_is_forgotten_runs(
    side: str, file: str, wall: Clock, machine: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It, and its successor; another clock that is further ahead stays refused."""
    job = Job(side, file, keep=1)
    job.run()
    machine.update(boot="b")
    wall.now += 60 * HOUR
    assert job.run().status == "refused"
    assert "to run it now: once('x').forget('2026-11-22T00:00:00Z')" in caplog.text
    assert not job.call("forget", "2026-11-19T11:00:00Z")
    assert not job.call("forget", "no slot")
    assert job.run().status == "refused"
    assert job.call("forget", "2026-11-22T00:00:00Z")
    machine.update(boot="c")
    wall.now += 24 * HOUR
    assert job.run().status == "refused"
    machine.update(boot="b")
    wall.now -= 23 * HOUR
    assert job.run().ran
    wall.now -= 61 * HOUR
    assert not job.run().ran, "what was done stays so"
    assert job.runs == ["12:00", "01:00"]


def test_forgotten_work_runs_whatever_the_clock(side: str, file: str, wall: Clock, machine: dict[str, Any]) -> None:
    job = Job(side, file)
    job.run()
    machine.update(boot="b")
    wall.now += 60 * HOUR
    assert job.run().status == "refused"
    with leasehold.connect(file) as locks:
        assert locks.once("x").forget(every_version=True)
    assert job.run().ran


def test_this_machine_is_told_apart() -> None:
    here = slots.this_machine()
    assert here._replace(offset=0) == slots.this_machine()._replace(offset=0)
    assert abs(here.offset - slots.this_machine().offset) < 1_000_000
