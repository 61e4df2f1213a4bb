"""A little chaos in every test run; ``make chaos`` is the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .making import Plan
from .run import is_refused, make_chaos

pytestmark = pytest.mark.timeout(300)

SECONDS = 14.0
PLAN = Plan(every=0.7, hits=6)
PATIENT = 10.0
"""How late a loss may be told here: this machine does other things too, and speed is for ``make chaos`` to tell."""


@pytest.mark.parametrize(
    "store",
    [
        pytest.param("sqlite", marks=pytest.mark.slow),
        pytest.param("redis", marks=pytest.mark.server),
        pytest.param("postgresql", marks=pytest.mark.server),
    ],
)
def test_stopped_and_killed_holders_lose_no_write(store: str, tmp_path: Path) -> None:
    figures, violations = make_chaos(store, SECONDS, tmp_path / store, seed=1, plan=PLAN, late=PATIENT)
    assert not violations, "\n".join(map(str, violations[:20]))
    assert figures["writes"] > 50
    assert figures["pauses"] + figures["kills"] > 2
    assert figures["given up"] > 0
    assert figures["looks"] > 0, "or nothing is known of what was left in the store"


@pytest.mark.slow
def test_a_naive_lock_is_refused(tmp_path: Path) -> None:
    """The negative control: the same faults, a lock without token and deadline, an unfenced counter."""
    _, violations = make_chaos("naive", SECONDS, tmp_path / "naive", seed=1, plan=PLAN, late=PATIENT)
    assert is_refused(violations), {each.rule for each in violations}
