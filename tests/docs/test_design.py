"""The design notes name files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from .blocks import ROOT

SOURCE = ROOT / "src" / "leasehold"
NOTES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]
CORE = (ROOT / "docs" / "design" / "01-core.md").read_text()
ANSWERS = re.findall(
    r"^\| ([^|]+) \| ([^|]+) \|$", CORE.split("\n| question | file: function |\n")[1].split("\n\n")[0], re.M
)[1:]
PLACE = re.compile(r"((?:`[\w/]+\.(?:py|lua)`(?:, )?)+): ((?:`[\w.]+`(?:, )?)+)")
"""`file.py`, `file.py`: `function`, `Class.method`"""


def defined(path: Path) -> set[str]:
    """Functions, classes, `Class.method` and constants of a module, or the functions of a Lua script."""
    if path.suffix == ".lua":
        return set(re.findall(r"^local function (\w+)", path.read_text(), re.M))
    found = set()
    for outer in ast.walk(ast.parse(path.read_text())):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(outer.name)
        if isinstance(outer, ast.Assign):
            found |= {target.id for target in outer.targets if isinstance(target, ast.Name)}
        if isinstance(outer, ast.ClassDef):
            functions = [each for each in outer.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{outer.name}.{each.name}" for each in functions}
    return found


@pytest.mark.parametrize("answer", [answer for _, answer in ANSWERS], ids=[question for question, _ in ANSWERS])
def test_each_answer_of_the_core_names_functions_that_exist(answer: str) -> None:
    places = PLACE.findall(answer)
    assert places, f"no `file`: `function` in {answer}"
    for files, names in places:
        for file in re.findall(r"`(.+?)`", files):
            assert (SOURCE / file).is_file(), f"there is no {file}"
            missing = set(re.findall(r"`(.+?)`", names)) - defined(SOURCE / file)
            assert not missing, f"{file} does not define {', '.join(missing)}"


def test_core_answers_at_least_20_questions() -> None:
    assert len(ANSWERS) >= 20


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.name)
def test_each_file_that_a_note_names_exists(note: Path) -> None:
    every = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "tests", "bench")
        for path in (ROOT / folder).rglob("*.*")
    }
    named = set(re.findall(r"`([\w/]+\.(?:py|lua))`", note.read_text())) - {"NAME.py"}
    missing = [
        file
        for file in sorted(named)
        if "NAME" not in file and not any(f"/{path}".endswith(f"/{file}") for path in every)
    ]
    assert not missing, f"there is no {', '.join(missing)}"
