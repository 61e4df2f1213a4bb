"""A signal handler may come between any two lines of the library: it may acquire leases, and it may raise."""

from __future__ import annotations

from pathlib import Path

import pytest

from .stores import SERVERS, run_program, url_of

pytestmark = pytest.mark.timeout(200)
STORES = ["memory", "sqlite", *(pytest.param(store, marks=pytest.mark.server) for store in (*SERVERS, "redlock"))]
STEPS = {"memory": 1, "sqlite": 2}
"""How many lines lie between two that are tried."""


def run(store: str, what: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTILE_STEP", str(STEPS.get(store, 23)))
    url = "memory://" if store == "memory" else url_of(store, request, tmp_path)
    report = run_program("every_line.py", url, what, f"lines-{store}-{what}", limit=180)
    assert not report["stolen"], f"SAFETY: {report}"
    assert report["held"] == [], report
    if store in ("memory", "sqlite", "redis"):  # others refuse a handler here and there, and replace connections
        assert report["descriptors"] == 0, report
        assert report["denied"] == 0, report


@pytest.mark.parametrize("store", STORES)
def test_signal_handler_acquires_at_any_line_of_an_acquire(
    store: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(store, "enter", request, tmp_path, monkeypatch)


@pytest.mark.parametrize("store", STORES[:3])
def test_signal_handler_raises_at_any_line_of_a_wait(
    store: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(store, "raise", request, tmp_path, monkeypatch)
