"""`scripts/run-tests`: what noise may do to a run, and what it may not hide."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, *arguments: str, **tests: str) -> subprocess.CompletedProcess[str]:
    """Of a project with these tests; what is run alone can tell, by a file that the first run makes."""
    for path, text in tests.items():
        file = folder / f"{path.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "LEASEHOLD_"))}
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts/run-tests"), "-p", "no:cacheprovider", "-p", "no:randomly", *arguments],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": "-p failures"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def once(name: str, says: str = "slow machine", check: str = "before") -> str:
    """A test that fails the first time and then passes."""
    return f"""
from pathlib import Path

def test_{name}():
    seen = Path("seen-{name}")
    before = seen.exists()
    seen.touch()
    tokens = [5, 7] if before else [5, 3]
    assert {check}{f', "{says}"' if says else ""}
"""


def test_test_that_passes_alone_does_not_make_the_run_red(tmp_path: Path) -> None:
    done = run(tmp_path, test_a=once("a"), test_b="def test_b(): pass")
    assert done.returncode == 0, done.stdout
    assert "passed only alone" in done.stdout
    assert done.stdout.count("slow machine") > 1, "the first failure is shown again at the end"


def test_bytecode_is_written_where_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    done = run(tmp_path, test_a="import sys\ndef test_a(): assert not sys.dont_write_bytecode")
    assert done.returncode == 0, done.stdout


def test_test_that_fails_alone_again_makes_the_run_red(tmp_path: Path) -> None:
    done = run(tmp_path, test_a="def test_a(): assert False", test_b=once("b"))
    assert done.returncode == 1
    assert "test_a.py::test_a failed alone, too" in done.stdout


@pytest.mark.parametrize(
    ("says", "check"),
    [("SAFETY: two of them", "before"), ("token 3 after token 4", "before"), ("", "tokens == sorted(tokens)")],
)
@pytest.mark.parametrize("beside", [("-n", "0"), ("-n", "1")])
def test_failure_about_safety_is_not_run_again(tmp_path: Path, says: str, check: str, beside: tuple[str, str]) -> None:
    done = run(tmp_path, "--tb=short", *beside, test_a=once("a", says, check))
    assert done.returncode == 1
    assert "about safety: test_a.py::test_a" in done.stdout


def test_crash_is_not_run_again(tmp_path: Path) -> None:
    test = once("a").replace("seen.touch()", "seen.touch(); before or __import__('os')._exit(3)")
    done = run(tmp_path, "-n", "1", test_a=test)
    assert done.returncode == 1
    assert "about safety: test_a.py::test_a" in done.stdout


def test_failure_of_a_suite_that_looks_for_faults_is_not_run_again(tmp_path: Path) -> None:
    done = run(tmp_path, tests__hostile__test_a=once("a"))
    assert done.returncode == 1
    assert "what this suite finds once is a fault" in done.stdout


def test_more_than_five_failures_are_not_run_again(tmp_path: Path) -> None:
    done = run(tmp_path, **{f"test_{name}": once(name) for name in "abcdef"})
    assert done.returncode == 1
    assert "6 tests failed" in done.stdout


def test_run_that_collects_nothing_keeps_its_exit_code(tmp_path: Path) -> None:
    assert run(tmp_path).returncode == 5
