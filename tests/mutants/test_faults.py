"""The mutants still fit the code: what they replace is there, once, and what they put there is Python."""

from __future__ import annotations

import ast

import pytest

from .faults import MUTANTS
from .mutant import Mutant
from .run import ROOT, files


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.title)
def test_mutant_fits_the_code(mutant: Mutant) -> None:
    healthy = (ROOT / "src" / "leasehold" / mutant.file).read_text()
    assert healthy.count(mutant.old) == 1
    broken = healthy.replace(mutant.old, mutant.new)
    assert broken != healthy
    if mutant.file.endswith(".py"):
        ast.parse(broken)


def test_test_files_of_every_mutant_exist() -> None:
    for mutant in MUTANTS:
        for file in files(mutant):
            assert (ROOT / file).exists()


def test_mutants_have_titles_of_their_own_and_are_twelve_at_least() -> None:
    assert len({mutant.title for mutant in MUTANTS}) == len(MUTANTS) >= 12
