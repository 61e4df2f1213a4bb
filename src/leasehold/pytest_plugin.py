"""The pytest plugin: the fixture ``leases``. Every pytest run loads this module, so it imports the rest only on use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing.leases import Leases


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> Iterator[Leases]:
    """Every ``Locks`` in memory, on a clock that the test advances. The test can lose, pause and cut off leases.

    While the fixture is in use, ``connect("memory://")`` and ``connect()`` open a store of this test. The fixture is a
    :class:`leasehold.testing.leases.Leases`; docs/testing.md has more examples. ::

        def test_report_stops_when_its_lease_is_lost(leases):
            with leasehold.connect() as locks, locks.lock("report", on_lost="log") as lease:
                leases.lose(lease)
                assert not lease.valid

    Args:
        monkeypatch: pytest's fixture, with which the clock and the store are replaced.
    """
    from .testing.leases import Leases

    found = Leases()
    with found.installed(monkeypatch):
        yield found
