"""Every behaviour of the source documents has a test that says so, by its number: in a docstring or in a comment."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

from .blocks import ROOT

DOCUMENTS = {"A": 8, "B": 7, "C": 5, "D": 10, "E": 10}
NUMBERS = [f"{document}{number}" for document, last in DOCUMENTS.items() for number in range(1, last + 1)]
INDEX = ROOT / "src" / "leasehold" / "testing" / "conformance" / "__init__.py"
"""It explains the numbers, and shows nothing."""


def mentioned(path: Path) -> set[str]:
    with path.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    said = [
        each.string
        for each in tokens
        if (each.type == tokenize.STRING and each.string.startswith('"""'))
        or (each.type == tokenize.COMMENT and "noqa" not in each.string)
    ]
    return set(re.findall(r"\b[A-E]\d{1,2}\b", "\n".join(said)))


def test_every_behaviour_is_shown_by_a_test() -> None:
    found: set[str] = set()
    for folder in (ROOT / "tests", ROOT / "src" / "leasehold" / "testing"):
        for path in sorted(folder.rglob("*.py")):
            if path not in (INDEX, Path(__file__)):
                found |= mentioned(path)
    missing = [number for number in NUMBERS if number not in found]
    assert not missing, f"no test shows {', '.join(missing)}"
