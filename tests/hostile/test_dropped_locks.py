"""A lease outlives the ``Locks`` that it came from."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import leasehold
from leasehold.testing.handles import eventually

from .stores import url_of


@pytest.mark.parametrize("store", ["memory", "sqlite", pytest.param("redis", marks=pytest.mark.server)])
def test_lease_is_renewed_though_its_locks_was_dropped_at_once(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = "memory://dropped" if store == "memory" else url_of(store, request, tmp_path)
    held = []
    for number in range(50):
        held.append(leasehold.connect(url, ttl=3, renew_every=0.3).lock(f"{request.node.name}{number}").acquire())
        assert held[-1].valid, held[-1].lost_reason
    gc.collect()
    for lease in held:
        before = lease.remaining
        eventually(lambda lease=lease, before=before: lease.remaining > before, what="it is renewed")
    assert [lease.lost_reason for lease in held if not lease.valid] == []
    assert all(lease.release() for lease in held)
