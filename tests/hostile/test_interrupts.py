"""Promises 4 and 6 in a process that is interrupted at random moments and lives on."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from .stores import SECONDS, STORES, run_program, url_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(3 * SECONDS + 120)]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("program", ["interrupted.py", "cancelled.py"])
def test_interrupts_lose_no_lease_and_leave_nothing_behind(
    store: str, program: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    check(program, url_of(store, request, tmp_path))


@pytest.mark.parametrize("client", ["engine", "pool"])
def test_interrupts_break_no_pool_of_the_users(client: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    check("interrupted.py", f"{client}+{url_of('postgresql', request, tmp_path)}")


def check(program: str, url: str) -> None:
    report = run_program(program, url, secrets.token_hex(6), SECONDS, limit=3 * SECONDS + 90)
    assert report["interrupts"] > 5 * SECONDS, "too few to show anything"
    assert report["lost"] is None, f"SAFETY: the lease held all the time was lost: {report}"
    assert report["least"] > report["ttl"] / 3, f"renewal came late: {report}"
    assert report["renews"], f"the keeper does not renew any more: {report}"
    assert report["left"] == [], f"SAFETY: leases leaked: {report}"
    assert report["longest"] < report["ttl"] + 5, f"SAFETY: a place in a queue leaked: {report}"
    assert report["released"], report
