"""The pytest plugin: the fixture ``leases``. Every pytest run loads this module, so it imports the rest only on use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing.leases import Leases


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> Iterator[Leases]:
    """Every ``Locks`` in memory, on a clock that the test advances; leases can be lost, and the store cut off, at will.
    See docs/testing.md."""
    from .testing.leases import Leases

    found = Leases()
    with found.installed(monkeypatch):
        yield found
