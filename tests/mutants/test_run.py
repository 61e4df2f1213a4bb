"""What the command makes of a judge that is red, green, or does not end."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import run
from .run import KILLED, SURVIVED, UNCLEAR, Judge, Limits, Ran, sentence

PATIENT = Limits(cpu=60, wall=100.0)
BUSY = "while True: pass"
ASLEEP = "import time; time.sleep(1000)"
FIRST_TIME = "from pathlib import Path; seen = Path('seen').exists(); Path('seen').touch()"


def said(folder: Path, code: str, limits: Limits = PATIENT) -> str:
    return sentence(folder, Judge("a judge", "", ("-c", code)), limits)[0]


def test_red_run_kills_a_mutant_and_a_green_one_does_not(tmp_path: Path) -> None:
    assert said(tmp_path, "print('FAILED tests/a.py::test_b - it is wrong'); exit(1)") == KILLED
    assert said(tmp_path, "print('1 passed')") == SURVIVED


@pytest.mark.parametrize("output", ["", "ERROR tests/a.py - ImportError"], ids=["nothing", "not collected"])
def test_a_mutant_that_cannot_be_run_shows_nothing(tmp_path: Path, output: str) -> None:
    assert said(tmp_path, f"print({output!r}); exit(2)") == UNCLEAR


def test_mutant_run_that_never_ends_counts_as_noticed(tmp_path: Path) -> None:
    assert said(tmp_path, BUSY, Limits(cpu=1, wall=100.0)) == KILLED


def test_mutant_run_that_is_only_slow_is_unclear(tmp_path: Path) -> None:
    """A loaded machine must not count as a test that noticed something."""
    assert said(tmp_path, ASLEEP, Limits(cpu=60, wall=0.5)) == UNCLEAR


def test_mutant_run_that_ends_at_the_second_try_is_judged_by_the_second_try(tmp_path: Path) -> None:
    assert said(tmp_path, f"{FIRST_TIME}\nif not seen:\n    {BUSY}", Limits(cpu=1, wall=100.0)) == SURVIVED


@pytest.mark.parametrize("hung", [("cpu", "wall"), ("wall", "cpu"), ("wall", "wall")])
def test_mutant_run_twice_over_a_limit_is_unclear_unless_cpu_ran_out_both_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hung: tuple[str, str]
) -> None:
    ran = iter([Ran(-9, "", 1.0, 1.0, each) for each in hung])
    monkeypatch.setattr(run, "run", lambda *arguments: next(ran))
    assert said(tmp_path, "") == UNCLEAR
