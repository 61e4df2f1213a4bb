"""A child that is forked in the middle of an acquire has no part in it, however it ends."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from .stores import STORES, run_program, url_of

pytestmark = [pytest.mark.timeout(120)]


@pytest.mark.parametrize("side", ["threads", "asyncio"])
@pytest.mark.parametrize("store", [pytest.param(store, marks=pytest.mark.server) for store in STORES])
def test_forked_child_does_not_give_back_what_its_parent_was_granted(
    store: str, side: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Promises 1 and 4. The child's stack unwinds through the acquire that the parent began."""
    found = run_program("forked_wait.py", url_of(store, request, tmp_path), secrets.token_hex(6), side, limit=60)
    assert found == {"valid": True, "exclusive": True}, f"SAFETY: {found}"


@pytest.mark.parametrize(
    ("store", "moment"),
    [
        ("sqlite", "answer"),
        ("sqlite", "second"),
        pytest.param("redis", "answer", marks=pytest.mark.server),
        pytest.param("redis", "silence", marks=pytest.mark.server),
        pytest.param("postgresql", "second", marks=pytest.mark.server),
    ],
)
def test_forked_child_has_no_part_in_an_acquire_of_several_names(
    store: str, moment: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Promises 1 and 4. The child goes on with the acquire that the parent began, and it ends with LeaseLost there."""
    url = url_of(store, request, tmp_path)
    found = run_program("forked_all.py", url, secrets.token_hex(6), moment, limit=60)
    assert found == {"child": "LeaseLost", "valid": True, "exclusive": True}, f"SAFETY: {found}"
