"""The judge of other libraries' runs finds what is planted, and each library's worker works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.testing.history import Record

from ..making import Plan
from .judging import Findings, judge_peers, judge_run
from .ledger import Ledger, Step
from .page import PAGE, PUBLISHED, written
from .run import is_found_out, run_one
from .usages import CONTROL, USAGES


def judged_steps(*steps: tuple[int, str], value: int, records: list[Record] | None = None) -> Findings:
    log = [Step(holding, what, float(at)) for at, (holding, what) in enumerate(steps)]
    return judge_peers(records or [], {"a": (value, log)})


def test_holders_that_write_in_turn_lose_and_overlap_nothing() -> None:
    found = judged_steps((1, "began"), (1, "wrote"), (1, "wrote"), (2, "began"), (2, "wrote"), value=3)
    assert (found.writes, found.lost, found.overlapping) == (3, 0, 0)


def test_write_that_is_missing_in_the_counter_is_lost() -> None:
    found = judged_steps((1, "began"), (1, "wrote"), (2, "began"), (2, "wrote"), value=1)
    assert (found.lost, found.overlapping) == (1, 0)


def test_write_after_the_next_holder_began_overlaps() -> None:
    found = judged_steps((1, "began"), (1, "wrote"), (2, "began"), (2, "wrote"), (1, "wrote"), (2, "wrote"), value=4)
    assert (found.lost, found.overlapping) == (0, 1)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    found = Ledger(tmp_path, "a")
    found.create()
    yield found
    found.close()


def test_holder_that_begins_when_a_later_one_is_at_work_is_the_one_that_overlaps() -> None:
    """It was stopped between its grant, which its number stands for, and its first step."""
    late = judged_steps((2, "began"), (1, "began"), (2, "wrote"), value=1)
    assert late.overlapping == 0
    found = judged_steps((2, "began"), (1, "began"), (2, "wrote"), (1, "wrote"), value=2)
    assert found.overlapping == 1


def test_lost_update_of_two_real_holders_is_found(ledger: Ledger, tmp_path: Path) -> None:
    """Both read 0, both write 1, with no token: the resource takes both, and one is gone."""
    for holding in (1, 2):
        assert ledger.begin(holding, token=0)
    values = [ledger.read(), ledger.read()]
    for holding, value in zip((1, 2), values, strict=True):
        assert ledger.write(holding, token=0, value=value + 1)
    found = judge_run(tmp_path)
    assert (found.writes, found.lost, found.overlapping) == (2, 1, 1)


def test_older_token_is_refused_as_soon_as_the_next_holder_began(ledger: Ledger, tmp_path: Path) -> None:
    assert ledger.begin(1, token=33)
    assert ledger.begin(2, token=34)
    assert not ledger.write(1, token=33, value=1)
    assert not ledger.begin(1, token=33)
    assert ledger.write(2, token=34, value=1)
    found = judge_run(tmp_path)
    assert (found.writes, found.lost, found.overlapping) == (1, 0, 0)


@pytest.mark.parametrize("kind", ["pause", "cut"])
def test_overlapping_write_counts_for_the_fault_that_its_process_had(kind: str) -> None:
    records = [
        Record("acquire", "a", "w1", 1, -2.0, -1.0, "granted"),
        Record("fault", "a", "w1", 1, -0.5, -0.5, kind, limit=1.0),
        Record("fault", "a", "w2", 2, -0.5, -0.5, "pause" if kind == "cut" else "cut", limit=1.0),
    ]
    found = judged_steps((1, "began"), (2, "began"), (1, "wrote"), value=1, records=records)
    assert (found.of_stopped, found.of_cut_off) == ((1, 0) if kind == "pause" else (0, 1))


@pytest.mark.parametrize(
    ("outcome", "wrote", "told"),
    [
        ("yes", False, "untold"),
        ("yes", True, "untold"),
        ("LockNotOwnedError", False, "told_in_time"),
        ("no", True, "told_late"),
    ],
)
def test_overtaken_holder_is_told_in_time_late_or_never(outcome: str, wrote: bool, told: str) -> None:
    records = [Record("release", "a", "w1", 1, 9.0, 9.1, outcome), Record("release", "a", "w2", 2, 9.2, 9.3, "yes")]
    steps = [(1, "began"), (1, "wrote"), (2, "began"), *([(1, "wrote")] if wrote else [])]
    found = judged_steps(*steps, value=1 + wrote, records=records)
    assert {kind: getattr(found, kind) for kind in ("told_in_time", "told_late", "untold")} == {
        "told_in_time": 0,
        "told_late": 0,
        "untold": 0,
        told: 1,
    }


def test_holder_that_released_before_the_next_began_was_not_overtaken() -> None:
    records = [Record("release", "a", "w1", 1, 1.5, 1.6, "LockNotOwnedError")]
    found = judged_steps((1, "began"), (1, "wrote"), (2, "began"), value=1, records=records)
    assert found.told_in_time + found.told_late + found.untold == 0


def waited(*records: Record) -> float:
    return judge_peers(sorted(records, key=lambda each: each.returned), {}).longest_wait


def test_longest_wait_is_from_the_first_ask_and_leaves_out_faults_of_ones_own() -> None:
    asks = [Record("ask", "a", "w1", returned=at) for at in (10.0, 11.0)]
    granted = Record("acquire", "a", "w1", 1, 11.0, 14.0, "granted")
    cut = Record("fault", "a", "w1", 1, 10.5, 10.5, "cut", limit=0.8)
    assert waited(*asks, granted) == pytest.approx(4.0)
    assert waited(*asks, granted, cut) == pytest.approx(3.0)


def test_process_that_waits_to_the_end_has_waited_until_then() -> None:
    ask, rest = Record("ask", "a", "w1", returned=10.0), Record("fault", "-", outcome="rest", returned=17.0)
    killed = Record("fault", "a", "w1", 1, 16.0, 16.0, "kill")
    assert waited(ask, rest) == pytest.approx(7.0)
    assert waited(ask, killed, rest) == 0.0


def test_page_shows_what_was_published() -> None:
    page = PAGE.read_text()
    rows: list[dict[str, Any]] = json.loads(PUBLISHED.read_text())
    assert {row["usage"] for row in rows} == set(USAGES) - {CONTROL}
    assert written(page, rows) == page, "run python -m chaos.peers.page"


SECONDS = 4.0
A_FEW = Plan(every=0.5, hits=2)
IN_EVERY_RUN = {"redis-py-asked", "filelock", "filelock-lease"}
LEFT_OUT = {CONTROL, "leasehold-sqlite", "leasehold-sqlite-asked"}
"""Those that differ in nothing of their own from one that is run."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "usage",
    [
        pytest.param(
            each,
            marks=[pytest.mark.server] * (USAGES[each].store != "sqlite")
            + [pytest.mark.slow] * (each not in IN_EVERY_RUN),
        )
        for each in USAGES
        if each not in LEFT_OUT
    ],
)
def test_worker_of_each_library_takes_locks_and_writes(usage: str, tmp_path: Path) -> None:
    found = run_one(usage, SECONDS, tmp_path, seed=1, plan=A_FEW)
    assert found.writes > 20
    assert found.stuck == 0, "a worker ended with an error, or not at all"
    if usage.endswith("-fenced"):
        assert (found.lost, found.overlapping) == (0, 0), "SAFETY: fenced writes were lost or overlapped"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_naive_lock_is_found_out(tmp_path: Path) -> None:
    """The negative control: a row that expires, and that nobody renews."""
    found = run_one(CONTROL, 14.0, tmp_path, seed=1, plan=Plan(every=0.7, hits=6))
    assert is_found_out(found), found
