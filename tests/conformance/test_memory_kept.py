"""Waiting in a store whose places in the queue are refreshed by the keeper: the memory store says so here."""

import pytest

from leasehold.core.protocol import Opened
from leasehold.stores import memory
from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import (  # noqa: F401
    scene,
    tasks,
    test_a_blocked_loop_loses_its_lease_and_is_told,
    test_a_cancelled_waiter_leaves_nothing,
    test_a_dead_waiter_holds_up_nobody,
    test_a_release_reaches_the_waiter_by_push,
    test_a_timeout_is_waited_for,
    test_a_waiter_keeps_its_place,
    test_a_waiter_that_timed_out_leaves_nothing,
    test_a_waiting_acquire_cancelled_at_any_await_leaves_nothing,
    test_a_waiting_acquire_outlives_an_outage,
    test_a_waiting_writer_is_not_starved,
    test_cancelling_just_as_it_is_granted_leaves_nothing,
    test_close_ends_a_waiting_acquire,
    test_drain_sends_off_those_who_wait,
    test_expiry_reaches_the_waiter,
    test_hand_offs_in_a_row_are_pushed,
    test_one_who_gives_up_lets_the_next_move_up,
    test_order_is_kept_without_push,
    test_waiters_are_served_in_order,
    threads,
)

from .probes import MemoryProbe


def open_kept(url: str, namespace: str) -> Opened:
    opened = memory.open_url(url, namespace)
    opened.store.keeps_places = True
    return opened


@pytest.fixture
def store() -> StoreUnderTest:
    probe = MemoryProbe("kept")
    return StoreUnderTest(
        "memory, kept", "memory://kept", probe, opener=f"{__name__}:open_kept", shared=False, joint=True
    )
