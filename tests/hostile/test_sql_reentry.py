"""A signal handler uses the SQL stores while its thread is inside them, and nobody else waits for that."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from .stores import run_program, url_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]


@pytest.mark.parametrize("store", ["postgresql", "mariadb"])
@pytest.mark.parametrize("options", ["?push=off", "?push=off&pool_size=1"])
def test_handler_that_releases_holds_up_neither_its_thread_nor_others(
    store: str, options: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(store, request, tmp_path) + options
    report = run_program("releasing.py", url, secrets.token_hex(6), 4, limit=90)
    assert report["handled"] > 50, report
    assert report["lost"] is None, f"SAFETY: the held lease was lost: {report}"
    assert report["errors"] == [], report
    assert report["slowest"] < 2.0, report


@pytest.mark.parametrize("store", ["postgresql", "mariadb"])
@pytest.mark.parametrize("how", ["waits", "raises"])
def test_handler_may_come_while_the_listener_is_started(
    store: str, how: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(store, request, tmp_path)
    report = run_program("listening.py", url, secrets.token_hex(6), how, limit=90)
    assert report["handled"] > 0, report
    assert report["left"] == [], f"threads outlive close(): {report}"
