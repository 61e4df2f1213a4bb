"""Simulated worlds of etcd's store logic and driver on the model of its server. ``SEEDS``, ``FIRST`` and ``SEED`` as in
``test_simulation.py``."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import pytest

from leasehold.core.lease import state_of

from .etcd_world import EtcdClient, simulate_etcd
from .run import KINDS

GROUP = 5
FIRST = int(os.environ.get("SEED", os.environ.get("FIRST", "0")))
LAST = FIRST + (1 if "SEED" in os.environ else int(os.environ.get("SEEDS", "20")))


@pytest.mark.parametrize("first", range(FIRST, LAST, GROUP))
def test_no_world_of_etcd_breaks_the_promises(first: int, record_property: Any) -> None:
    simulated, began = 0.0, time.process_time()
    for seed in range(first, min(first + GROUP, LAST)):
        result = simulate_etcd(seed)
        assert not result.violations, result.story()
        assert result.grants > 10, f"seed {seed} shows little: {result.grants} grants"
        simulated += result.simulated
    record_property("simulated", (simulated, time.process_time() - began))  # see conftest.py
    gc.collect()


def test_every_kind_of_lock_is_among_the_worlds_of_etcd() -> None:
    assert {simulate_etcd(5 * number + 1).kind for number in range(len(KINDS))} == set(KINDS)


class Trusting(EtcdClient):
    """Believes that every lease is valid for a second longer than it is."""

    def note_check(self, lease: Any) -> bool:
        state = state_of(lease)
        if state.end is None:
            state.deadline += 1.0
        return super().note_check(lease)


def test_lease_that_is_trusted_for_too_long_is_found_in_a_world_of_etcd() -> None:
    found = {each.rule for seed in range(1, 20) for each in simulate_etcd(seed, Trusting).violations}
    assert "not in the store" in found or "overlap" in found, found
