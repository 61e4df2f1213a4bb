"""Renewal comes first: the acquires of one process do not cost it the leases that it holds."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from .stores import SECONDS, STORES, THREADS, run_program, url_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(SECONDS + 180)]


@pytest.mark.parametrize("store", STORES)
def test_crowd_of_acquires_does_not_starve_renewal(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    ttl = 4.0 if store == "etcd" else 3.0
    url = url_of(store, request, tmp_path)
    report = run_program("crowd.py", url, secrets.token_hex(6), SECONDS, THREADS, ttl, limit=SECONDS + 150)
    assert report["pairs"] > THREADS, report
    assert report["lost"] is None, f"SAFETY: the held lease was lost: {report}"
    assert report["failed"] == 0, report
    assert report["slow"] <= report["pairs"] / 100, report
    assert report["least"] > ttl / 3, f"renewal came late: {report}"
