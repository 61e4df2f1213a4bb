"""A KeyboardInterrupt at each line of ``once``, while a mark moves: nothing stays held, no recorded version is lost."""

from __future__ import annotations

import gc
import uuid
from pathlib import Path

import pytest

import leasehold
from leasehold.kinds.once import archive
from leasehold.testing.handles import eventually

from .lines import AtLine

PLACES = 3000
STEP = 7


def press() -> None:
    raise KeyboardInterrupt


@pytest.mark.timeout(200)
@pytest.mark.parametrize("first", range(1, STEP + 1))
def test_interrupted_caller_leaves_nothing_behind(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_MARKS", 0)
    where = set()
    for place in range(first, PLACES, STEP):
        with leasehold.connect(f"memory://{uuid.uuid4().hex}") as locks:
            runs: list[int] = []
            run(locks, 0, runs)
            interrupt = AtLine(place, press, within=str(Path("kinds", "once")))
            try:
                with interrupt:
                    run(locks, 1, runs)
            except KeyboardInterrupt:
                where.add(interrupt.where)
            before, recorded = list(runs), locks.once("x", version=1).outcome()
            gc.collect()
            eventually(lambda: not list(locks.leases()), 10, what=f"nothing is held after {interrupt.where}")
            for version in (0, 1, 2, 0, 1):
                run(locks, version, runs)
            assert runs == [*before, *([] if recorded else [1]), 2], interrupt.where
        if not interrupt.where:
            break
    assert not interrupt.where, "it has come at each line"
    assert len(where) > 20


def run(locks: leasehold.Locks, version: int, runs: list[int]) -> None:
    def work() -> None:
        runs.append(version)

    locks.once("x", version=version, keep=1).run(work)
