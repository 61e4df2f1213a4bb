"""``leasehold.prometheus``: read over HTTP, as Prometheus does."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

import leasehold
from kinds.stores import open_store
from leasehold import aio, prometheus
from leasehold.prometheus import instrument
from leasehold.testing.faults import install
from leasehold.testing.handles import eventually

from .scraping import Scrape, scrape, until


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def port(registry: CollectorRegistry) -> Iterator[int]:
    """Of prometheus_client's own server."""
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def locks(request: pytest.FixtureRequest, registry: CollectorRegistry) -> Iterator[leasehold.Locks]:
    with leasehold.connect(f"memory://{request.node.name}", ttl=60) as locks:
        instrument(locks, registry)
        yield locks


def text(registry: CollectorRegistry) -> Scrape:
    return Scrape(prometheus_client.generate_latest(registry).decode())


def test_pair_is_counted_when_it_is_scraped(locks: leasehold.Locks, port: int) -> None:
    """At once: what has happened before the scrape is in it."""
    for pairs in range(1, 20):
        lease = locks.lock("x", kind="report").acquire()
        found = scrape(port)
        assert found.of("held") == 1
        assert found.of("acquire_seconds_count", store="memory", kind="report", outcome="acquired") == pairs
        assert lease.release()
        found = scrape(port)
        assert found.of("held") == 0
        assert found.of("hold_seconds_count", kind="report") == pairs
        assert found.of("store_seconds_count", operation="acquire", outcome="ok") == pairs
        assert found.of("store_seconds_count", operation="release", outcome="ok") == pairs


async def test_pair_of_a_task_is_counted_when_it_is_scraped(registry: CollectorRegistry) -> None:
    async with aio.connect("memory://prometheus-pair", ttl=60) as locks:
        instrument(locks, registry)
        for pairs in range(1, 20):
            lease = await locks.lock("x", kind="report").acquire()
            found = text(registry)
            assert found.of("held") == 1
            assert found.of("acquire_seconds_count", store="memory", kind="report", outcome="acquired") == pairs
            assert await lease.release()
            found = text(registry)
            assert found.of("held") == 0
            assert found.of("hold_seconds_count", kind="report") == pairs
            assert found.of("store_seconds_count", operation="release", outcome="ok") == pairs


def test_histograms_have_the_time_that_was_waited_and_held(locks: leasehold.Locks, port: int) -> None:
    lease = locks.lock("x").acquire()
    with pytest.raises(leasehold.AcquireTimeout):
        locks.lock("x", timeout=0.3).acquire()
    assert lease.release()
    found = scrape(port)
    assert 0.3 <= found.of("acquire_seconds_sum", outcome="timeout") < 30
    assert found.of("acquire_seconds_count", outcome="timeout") == 1
    assert 0.3 <= found.of("hold_seconds_sum") < 30
    assert found.of("acquire_seconds_bucket", outcome="timeout", le="0.25") == 0


def test_waiters_are_counted_while_they_wait(locks: leasehold.Locks, port: int) -> None:
    lease, cancel = locks.lock("x").acquire(), threading.Event()
    leases: list[Any] = []

    def wait() -> None:
        try:
            leases.append(locks.lock("x").acquire(cancel=cancel))
        except leasehold.AcquireCancelled:
            pass

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(port, "waiting", 3)
    assert lease.release()
    until(port, "waiting", 2)
    cancel.set()
    for thread in threads:
        thread.join()
    found = scrape(port)
    assert (found.of("waiting"), found.of("held")) == (0, 1)
    assert found.of("acquire_seconds_count", outcome="cancelled") == 2
    assert leases[0].release()


async def test_cancelled_task_no_longer_waits(registry: CollectorRegistry) -> None:
    async with aio.connect("memory://prometheus-cancelled", ttl=60) as locks:
        instrument(locks, registry)
        async with locks.lock("x"):
            task = asyncio.create_task(locks.lock("x").acquire())
            async with asyncio.timeout(60):
                while text(registry).of("waiting") != 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            found = text(registry)
            assert found.of("waiting") == 0
            assert found.of("acquire_seconds_count", outcome="cancelled") == 1


def test_losses_are_counted_by_reason(locks: leasehold.Locks, port: int) -> None:
    """The text of a reason may hold anything: the label is one of a few words."""
    expired = locks.lock("y", ttl=0.2, renew=False).acquire()
    until(port, "lost_total", 1, reason="expired")
    broken = locks.lock("b").acquire()
    assert locks.break_lease("b")
    until(port, "lost_total", 1, reason="broken")
    network = install(locks)
    failing = locks.lock("f", ttl=60, renew_every=0.05).acquire()
    network.lose_request("renew")
    found = until(port, "lost_total", 1, reason="renewal_failed")
    network.mend()
    assert found.labels("lost_total", "reason") == {"expired", "broken", "renewal_failed"}
    assert found.of("renewals_total", outcome="failed") >= 1
    assert not any(lease.valid for lease in (expired, broken, failing))


def test_renewals_export_what_was_left_of_the_lease(locks: leasehold.Locks, port: int) -> None:
    lease = locks.lock("x").acquire()
    lease.renew()
    found = scrape(port)
    assert found.of("renewals_total", outcome="ok") == found.of("renewal_margin_seconds_count") == 1
    assert 50 < found.of("renewal_margin_seconds_sum") < 60
    assert lease.release()


@pytest.mark.server
def test_hand_over_does_not_look_like_a_late_renewal(
    registry: CollectorRegistry, port: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """MongoDB's push carries the lease to a waiter, for a first term of 0.7 s, which the keeper extends at once."""
    url, namespace = open_store("mongodb", request, tmp_path).url, f"t{uuid.uuid4().hex[:12]}"
    with leasehold.connect(url, ttl=9, namespace=namespace) as locks:
        instrument(locks, registry)
        lease, leases = locks.lock("x").acquire(), []
        waiter = threading.Thread(target=lambda: leases.append(locks.lock("x").acquire()))
        waiter.start()
        until(port, "waiting", 1)
        assert lease.release()
        waiter.join()
        found = until(port, "renewals_total", 1, outcome="ok")
        assert found.of("renewal_margin_seconds_bucket", le="1.0") == 0
        assert leases[0].release()


def test_store_that_is_away_is_counted(registry: CollectorRegistry, port: int) -> None:
    with leasehold.connect("memory://prometheus-away", ttl=60) as locks:
        network = install(locks)
        instrument(locks, registry)
        network.lose_request("acquire")
        with pytest.raises(leasehold.StoreUnavailable):
            locks.lock("x").try_acquire()
        network.mend()
        found = scrape(port)
        assert found.of("acquire_seconds_count", outcome="unavailable") == 1
        assert found.of("store_seconds_count", operation="acquire", outcome="unavailable") == 1


def test_takeover_is_counted(locks: leasehold.Locks, port: int, request: pytest.FixtureRequest) -> None:
    with leasehold.connect(f"memory://{request.node.name}") as other:
        gone = other.lock("x", ttl=0.2, renew=False).acquire()
        assert locks.lock("x").acquire(60).release()
        assert not gone.valid
    found = scrape(port)
    assert found.of("taken_over_total") == found.of("acquire_seconds_count", outcome="acquired") == 1


def test_once_is_counted_by_outcome(locks: leasehold.Locks, port: int) -> None:
    def fail() -> None:
        raise ValueError

    assert locks.once("migrate").run(lambda: None).ok
    assert locks.once("migrate").run(lambda: None).ok
    assert not locks.once("fails").run(fail, check=False).ok
    found = scrape(port)
    assert [found.of("once_total", outcome=outcome) for outcome in ("done", "skipped", "failed")] == [1, 1, 1]


def test_leader_is_exported_by_the_label_that_the_user_makes(registry: CollectorRegistry, port: int) -> None:
    with leasehold.connect("memory://prometheus-leader") as locks:
        instrument(locks, registry, name_label=lambda name: name.partition(":")[0])

        def lead(term: leasehold.Term) -> None:
            assert scrape(port).of("leader", name="billing") == 1

        locks.election("billing:eu").run(lead)
        assert locks.lock("billing:eu").acquire().release()
        found = scrape(port)
        assert found.of("leader", name="billing") == 0
        assert found.labels("leader", "name") == {"billing"}


def test_names_are_in_no_label_unless_the_user_makes_one(locks: leasehold.Locks, registry: CollectorRegistry) -> None:
    locks.election("secret").run(lambda term: None)
    assert locks.lock("secret").acquire().release()
    assert b"secret" not in prometheus_client.generate_latest(registry)


def test_failing_name_label_costs_nothing_but_its_label(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    with leasehold.connect("memory://prometheus-label") as locks:
        instrument(locks, registry, name_label=lambda name: str(1 / 0))
        locks.election("x").run(lambda term: None)
        assert text(registry).of("hold_seconds_count") == 1
    assert "could not be counted: division by zero" in caplog.text


def test_kinds_beyond_a_hundred_share_a_label(locks: leasehold.Locks, registry: CollectorRegistry) -> None:
    """A kind may be made of an id: that must not fill the memory of Prometheus."""
    for number in range(prometheus.MOST_KINDS + 20):
        assert locks.lock("x", kind=f"job-{number}").acquire().release()
    found = text(registry)
    assert len(found.labels("hold_seconds_count", "kind")) == prometheus.MOST_KINDS + 1
    assert found.of("hold_seconds_count", kind="other") == 20


def test_locks_of_one_process_share_the_metrics(locks: leasehold.Locks, registry: CollectorRegistry) -> None:
    with leasehold.connect("memory://prometheus-second") as second:
        instrument(second, registry)
        with locks.lock("x"), second.lock("x"):
            assert text(registry).of("held") == 2
        assert text(registry).of("hold_seconds_count") == 2


def test_instrument_twice_counts_once(locks: leasehold.Locks, registry: CollectorRegistry) -> None:
    instrument(locks, registry)
    assert locks.lock("x").acquire().release()
    assert text(registry).of("hold_seconds_count") == 1
    with pytest.raises(ValueError, match="instrumented already"):
        instrument(locks, CollectorRegistry())
    with pytest.raises(ValueError, match="instrumented already"):
        instrument(locks, registry, name_label=str)


def test_wrong_arguments_of_instrument_are_refused(locks: leasehold.Locks) -> None:
    for wrong in (None, locks.lock("x"), "memory://"):
        with pytest.raises(TypeError, match="expects what connect"):
            instrument(wrong)
    with pytest.raises(TypeError, match="name_label must be callable"):
        instrument(locks, name_label="x")  # type: ignore[arg-type]


def test_instrumented_locks_can_be_collected(registry: CollectorRegistry) -> None:
    locks = leasehold.connect("memory://prometheus-collected")
    instrument(locks, registry)
    assert locks.lock("x").acquire().release()
    locks.close()
    core = weakref.ref(locks._core)
    text(registry)
    del locks

    def gone() -> bool:
        gc.collect()
        return core() is None

    eventually(gone)
    assert text(registry).of("held") == 0


def test_signal_handler_that_acquires_while_metrics_are_collected_does_not_hang(
    locks: leasehold.Locks, registry: CollectorRegistry
) -> None:
    """The locks of prometheus_client are not re-entrant."""
    taken = []

    def handler(number: int, frame: Any) -> None:
        taken.append(locks.lock("y").acquire().release())
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    try:
        while len(taken) < 100:
            text(registry)
            assert locks.lock("x").acquire().release()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all(taken)
    assert text(registry).of("held") == 0


def test_forked_child_counts_its_own(locks: leasehold.Locks, registry: CollectorRegistry) -> None:
    """Also when it was forked while the parent was counting."""
    lease = locks.lock("x").acquire()
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            text(registry)

    counting = threading.Thread(target=count)
    counting.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    signal.alarm(30)
                    code = 0 if text(registry).of("held") == 0 else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        counting.join()
    assert text(registry).of("held") == 1
    assert lease.release()
