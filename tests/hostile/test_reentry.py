"""Signal handlers and destructors may use the library while their thread is inside it."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from .stores import SECONDS, STORES, run_program, url_of

pytestmark = pytest.mark.timeout(SECONDS + 120)


def reenter(url: str, how: str) -> None:
    report = run_program("reentered.py", url, secrets.token_hex(6), SECONDS / 2, how, limit=SECONDS + 90)
    assert report["calls"] > 5 * SECONDS, f"too few to show anything: {report}"
    assert report["taken"], report
    assert report["lost"] is None, f"SAFETY: the lease held all the time was lost: {report}"
    assert not report["undone"], f"SAFETY: what a handler was granted was undone: {report}"
    assert report["left"] == [], f"SAFETY: leases leaked: {report}"
    assert report["released"], report


@pytest.mark.parametrize("how", ["handler", "destructor"])
def test_reentry_in_memory_neither_deadlocks_nor_leaks(how: str) -> None:
    reenter("memory://", how)


@pytest.mark.server
@pytest.mark.parametrize("how", ["handler", "destructor"])
@pytest.mark.parametrize("store", STORES)
def test_reentry_neither_deadlocks_nor_leaks(
    store: str, how: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    reenter(url_of(store, request, tmp_path), how)
