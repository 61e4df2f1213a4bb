"""Redis, threads: connections that are borrowed from the pool of the user's client."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import redis

import leasehold
from leasehold.testing.handles import eventually

pytestmark = [pytest.mark.server, pytest.mark.timeout(60)]

COLLECTED_INSIDE_THE_POOL = """
import faulthandler, gc, sys
import leasehold, redis

faulthandler.dump_traceback_later(20, exit=True)
pool = redis.BlockingConnectionPool.from_url(sys.argv[1], max_connections=5)
locks = leasehold.connect(redis.Redis(connection_pool=pool), namespace="collected")
locks.inspect("a")
gc.disable()
cycle = [locks]
cycle.append(cycle)
del locks, cycle
with pool.pool.mutex:  # as in the middle of its get_connection() and release(), where the collector may run
    gc.collect()
client = redis.Redis(connection_pool=pool)
for _ in range(20):
    assert client.ping()
print("over")
"""


def test_connection_that_is_collected_inside_the_clients_pool_does_not_deadlock_it(redis_server: Any) -> None:
    program = [sys.executable, "-c", COLLECTED_INSIDE_THE_POOL, redis_server.url]
    done = subprocess.run(program, capture_output=True, text=True, timeout=50, check=False)
    assert "over" in done.stdout, done.stderr


class Slow(redis.ConnectionPool):
    """A pool that keeps who asks waiting while ``hold`` is set, and then fails."""

    hold = threading.Event()
    go_on = threading.Event()
    asked = 0

    def get_connection(self, *args: Any, **options: Any) -> Any:
        self.asked += 1
        if self.hold.is_set():
            assert self.go_on.wait(30)
            raise redis.ConnectionError("of the outage")
        return super().get_connection(*args, **options)


def test_late_error_of_one_borrower_is_not_raised_to_the_next(redis_server: Any) -> None:
    pool = Slow.from_url(redis_server.url, max_connections=20)
    pool.hold, pool.go_on = threading.Event(), threading.Event()
    pool.hold.set()
    locks = leasehold.connect(redis.Redis(connection_pool=pool), namespace="late")
    with pytest.raises(leasehold.StoreUnavailable):
        locks.inspect("a")
    pool.hold.clear()
    pool.go_on.set()
    eventually(lambda: not [each for each in threading.enumerate() if each.name == "leasehold-redis-loan"])
    assert locks.inspect("a") is None  # asks once, and must not fail on a healthy server
    locks.close()


def test_late_connection_goes_back_to_the_clients_pool(redis_server: Any) -> None:
    pool = redis.BlockingConnectionPool.from_url(redis_server.url, max_connections=3, timeout=20)
    taken = [pool.get_connection() for _ in range(3)]
    locks = leasehold.connect(redis.Redis(connection_pool=pool), namespace="late")
    with pytest.raises(leasehold.StoreUnavailable):
        locks.lock("a").try_acquire(timeout=0.3)
    for each in taken:
        pool.release(each)
    locks.close()
    again = [pool.get_connection() for _ in range(3)]
    for each in again:
        pool.release(each)
    pool.disconnect()
