"""Events carry the store, the kind and durations: what a histogram needs."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

import leasehold
from leasehold import Event, aio
from leasehold.testing.faults import install
from leasehold.testing.handles import eventually


def of(told: list[Event], type: str) -> list[Event]:
    return [event for event in told if event.type == type]


def check_pair(told: list[Event], waited: float, held: float, took: float) -> None:
    (acquired,), (released,) = of(told, "acquired"), of(told, "released")
    assert (acquired.store, acquired.kind) == (released.store, released.kind) == ("memory", "report")
    assert acquired.waited is not None
    assert waited <= acquired.waited <= took
    assert released.held is not None
    assert held <= released.held <= took
    assert (acquired.held, acquired.remaining, released.waited, released.remaining) == (None,) * 4


def test_events_tell_how_long_a_thread_waited_and_held() -> None:
    told: list[Event] = []
    with leasehold.connect("memory://durations") as other, leasehold.connect("memory://durations") as locks:
        locks.on_event(told.append)
        began = time.monotonic()
        blocker = other.lock("x", ttl=0.3, renew=False).acquire()
        lease = locks.lock("x", kind="report", fair=False).acquire(60)
        token, waited = lease.token, time.monotonic() - began
        lease.release()
        assert locks.lock("x", kind="report").acquire().release()
        eventually(lambda: of(told, "released")[1:])
        (taken,) = of(told, "taken_over")
        assert (taken.token, taken.kind, taken.store) == (token, "report", "memory")
        assert taken.waited is not None
        assert 0.1 < taken.waited <= waited
        assert not blocker.valid


def test_released_event_tells_how_long_the_lease_was_held() -> None:
    told: list[Event] = []
    with leasehold.connect("memory://held-for") as locks:
        locks.on_event(told.append)
        began = time.monotonic()
        with locks.lock("x", kind="report"):
            time.sleep(0.1)
        took = time.monotonic() - began
        eventually(lambda: of(told, "released"))
    check_pair(told, 0.0, 0.1, took)


async def test_released_event_of_a_task_tells_how_long_the_lease_was_held() -> None:
    told: list[Event] = []
    async with aio.connect("memory://held-for-tasks") as locks:
        locks.on_event(told.append)
        began = time.monotonic()
        async with locks.lock("x", kind="report"):
            await asyncio.sleep(0.1)
        took = time.monotonic() - began
    check_pair(told, 0.0, 0.1, took)


def test_refused_event_tells_how_long_was_waited() -> None:
    told: list[Event] = []
    with leasehold.connect("memory://refused-after") as locks, locks.lock("x"):
        locks.on_event(told.append)
        with pytest.raises(leasehold.AcquireTimeout):
            locks.lock("x", kind="report", timeout=0.2).acquire()
        eventually(lambda: of(told, "refused"))
        (refused,) = told
        assert refused.kind == "report"
        assert refused.waited is not None
        assert refused.waited >= 0.2


def test_renewed_event_tells_what_was_left_of_the_lease() -> None:
    """The early warning: a slow store leaves less of each term."""
    told: list[Event] = []
    with leasehold.connect("memory://margin", ttl=60) as locks:
        lease = locks.lock("x").acquire()
        locks.on_event(told.append)
        network = install(locks)
        lease.renew()
        network.delay_answer(0.5, "renew")
        lease.renew()
        eventually(lambda: len(of(told, "renewed")) == 2)
        quick, slow = (event.remaining for event in told)
        assert quick is not None
        assert slow is not None
        assert 50 < quick <= 60
        assert slow <= 60 - 0.6 - 0.5  # the margin, and what the answer took
        assert lease.release()


def test_lost_event_tells_for_how_long_the_lease_could_be_trusted() -> None:
    told: list[Event] = []
    with leasehold.connect("memory://lost-after") as locks:
        locks.on_event(told.append)
        lease = locks.lock("x", ttl=0.3, renew=False, kind="report").acquire()
        eventually(lambda: of(told, "lost"))
        (lost,) = of(told, "lost")
        assert lost.kind == "report"
        assert lost.held == pytest.approx(0.3 - 0.053)  # ttl - margin, however late it was noticed
        assert not lease.valid


def test_log_records_have_the_fields_of_the_event(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    with caplog.at_level(logging.INFO, "leasehold"), leasehold.connect("memory://fields") as locks:
        locks.on_event(told.append)
        assert locks.lock("x", kind="report").acquire().release()
        eventually(lambda: len(told) == 2)
    records = [vars(record) for record in caplog.records if hasattr(record, "lease_event")]
    for event, record in zip(told, records, strict=True):
        assert record["lease_event"] == event.type
        for field in Event._fields[1:]:
            assert record[f"lease_{field}"] == getattr(event, field)


def test_event_made_of_five_fields_as_before_is_still_an_event() -> None:
    assert leasehold.Event("acquired", "x", "me", 7, None) == (
        "acquired",
        "x",
        "me",
        7,
        None,
        "",
        None,
        None,
        None,
        None,
    )
