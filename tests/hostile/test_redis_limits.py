"""Redis, threads: an acquire ends when its timeout says so, whatever the server, signals or the user's pool do."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import leasehold
from servers.redis import Redis

pytestmark = [pytest.mark.server, pytest.mark.timeout(90)]
SLACK = 4.0
"""Seconds that a busy machine may add."""


@pytest.fixture
def periodic_signal() -> Iterator[None]:
    """A harmless signal every 20 ms, as a profiler sends."""
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def seconds_until_unavailable(locks: leasehold.Locks, timeout: float) -> float:
    """How long a failing acquire takes. Without an answer after 20 s it is interrupted, and the test fails."""
    ended, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def end_it() -> None:
        if not ended.wait(20):
            signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=end_it, daemon=True).start()
    began = time.monotonic()
    try:
        with pytest.raises(leasehold.StoreUnavailable):
            locks.lock("a").acquire(timeout=timeout)
    except KeyboardInterrupt:
        pytest.fail(f"acquire(timeout={timeout:g}) did not end within 20 s")
    finally:
        ended.set()
    return time.monotonic() - began


@pytest.mark.usefixtures("periodic_signal")
@pytest.mark.parametrize("client", [False, True], ids=["url", "client"])
def test_acquire_on_a_hung_server_ends_in_time_under_periodic_signals(start_server: Any, client: bool) -> None:
    server = start_server(Redis)
    target: Any = redis.Redis(port=server.port) if client else server.url
    locks = leasehold.connect(target)
    locks.lock("a").acquire().release()
    server.pause()
    try:
        assert seconds_until_unavailable(locks, 1) < 1 + SLACK
    finally:
        server.resume()
        locks.close()


@pytest.mark.parametrize("make", [redis.BlockingConnectionPool, redis.ConnectionPool], ids=["blocking", "plain"])
def test_acquire_ends_in_time_when_the_clients_pool_is_used_up(redis_server: Any, make: Callable[..., Any]) -> None:
    options = {"timeout": 30} if make is redis.BlockingConnectionPool else {}
    pool = make.from_url(redis_server.url, max_connections=2, **options)  # type: ignore[attr-defined]
    taken = [pool.get_connection() for _ in range(2)]
    locks = leasehold.connect(redis.Redis(connection_pool=pool))
    assert seconds_until_unavailable(locks, 1) < 1 + SLACK
    for connection in taken:
        pool.release(connection)
    assert locks.lock("a").acquire(timeout=30).release()  # what came too late was not kept
    locks.close()
    pool.disconnect()


def test_acquire_ends_in_time_when_the_clients_connection_hangs_while_it_is_made(start_server: Any) -> None:
    """The client has no timeouts of its own."""
    server = start_server(Redis)
    locks = leasehold.connect(redis.Redis(port=server.port))
    server.pause()
    try:
        assert seconds_until_unavailable(locks, 1) < 1 + SLACK
    finally:
        server.resume()
        locks.close()
