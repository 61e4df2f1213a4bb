"""The pytest plugin: the fixture ``leases``. Every pytest run loads it, so it imports nothing until it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing.leases import Leases


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> Iterator[Leases]:
    """Leases in memory, on a clock that can be advanced, lost and cut off at will. See docs/testing.md."""
    from .testing.leases import Leases

    found = Leases()
    with found.installed(monkeypatch):
        yield found
