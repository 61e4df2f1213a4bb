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
