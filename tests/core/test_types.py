"""What type checkers make of what users write: they find every planted mistake, and nothing in right uses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import leasehold

# How long it takes says nothing about what it finds.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TYPED = Path(__file__).parent / "typed"
SOURCE = Path(leasehold.__file__).parents[1]


def lines_with(found: set[tuple[str, int]]) -> list[str]:
    texts = {path.name: path.read_text().splitlines() for path in TYPED.glob("*.py")}
    return [f"{file}:{line}: {texts[file][line - 1].strip()}" for file, line in sorted(found)]


def planted() -> list[str]:
    marked = {
        (path.name, number)
        for path in TYPED.glob("*.py")
        for number, text in enumerate(path.read_text().splitlines(), 1)
        if text.endswith("  # wrong")
    }
    assert len(marked) > 100
    return lines_with(marked)


def run(*command: str, cwd: Path) -> str:
    """In a process of its own: a type checker leaves a million objects, with which every collection of garbage would
    stop later tests for seconds."""
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # otherwise it asks for its newest version
    command = (sys.executable, "-m", *command)
    ran = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stdout


def test_mypy_finds_every_planted_mistake_and_no_other(tmp_path: Path) -> None:
    out = run("mypy", "--strict", "--cache-dir", str(tmp_path), str(TYPED), cwd=tmp_path)
    errors = re.findall(r"(\w+\.py):(\d+): error:", out)
    assert lines_with({(file, int(line)) for file, line in errors}) == planted(), out


def test_pyright_finds_every_planted_mistake_and_no_other(tmp_path: Path) -> None:
    shutil.copytree(TYPED, tmp_path, dirs_exist_ok=True)
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(SOURCE)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    found = json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable, cwd=tmp_path))
    errors = [each for each in found["generalDiagnostics"] if each["severity"] == "error"]
    lines = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors}
    assert lines_with(lines) == planted(), [(each["range"]["start"]["line"] + 1, each["message"]) for each in errors]
