"""What one thread waits for does not hold up another: a signal handler may wait, and a call may hang."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import leasehold
from servers.mongodb import MongoDB

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]


def test_call_that_waited_for_its_turn_keeps_its_limit(start_server: Any) -> None:
    server = start_server(MongoDB)
    took: list[float] = []
    # So small a pool leaves one acquire at a time.
    with leasehold.connect(f"{server.url}?maxPoolSize=5", namespace=secrets.token_hex(6)) as locks:
        assert locks.lock("x").acquire(timeout=30).release()

        def ask() -> None:
            began = time.monotonic()
            with pytest.raises(leasehold.StoreUnavailable):
                locks.lock("x").try_acquire()
            took.append(time.monotonic() - began)

        server.pause()
        try:
            threads = [threading.Thread(target=ask) for _ in range(3)]
            for thread in threads:
                thread.start()
                time.sleep(1)
            for thread in threads:
                thread.join()
        finally:
            server.resume()
    assert max(took) < 7, "a call has 5 s"


WAITING_HANDLER = """
import faulthandler, random, signal, sys, threading, time
import leasehold

faulthandler.dump_traceback_later(60, exit=True)
locks = leasehold.connect(sys.argv[1], namespace=sys.argv[2], ttl=30)
other = leasehold.connect(sys.argv[1], namespace=sys.argv[2], ttl=30)
held = [other.lock(name).acquire() for name in ("main", "handler", "thread")]
locks.lock("main").try_acquire(timeout=1)  # it listens from now on

# The handler waits wherever it finds the main thread inside the part of the store that listens.
inside, waits = threading.Event(), []

def handler(number, frame):
    if waits or stop.is_set():
        return
    while frame is not None:
        if frame.f_code.co_name in ("listen", "forget") and "/stores/" in frame.f_code.co_filename:
            waits.append(1)
            inside.set()
            locks.lock("handler").try_acquire(timeout=4)
            return
        frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.002))

stop = threading.Event()
took = []

def thread():
    while inside.wait(40) and not took:
        began = time.monotonic()
        locks.lock("thread").try_acquire(timeout=1)
        took.append(time.monotonic() - began)
    stop.set()

worker = threading.Thread(target=thread)
signal.signal(signal.SIGALRM, handler)
worker.start()
signal.setitimer(signal.ITIMER_REAL, 0.001)
while not stop.is_set():
    locks.lock("main").try_acquire(timeout=0.002)
signal.setitimer(signal.ITIMER_REAL, 0)
worker.join()
print(took[0] if took else "the main thread was never found there")
other.close()
locks.close()
"""


@pytest.mark.parametrize("store", ["etcd", "zookeeper"])
def test_signal_handler_that_waits_holds_up_no_other_thread(store: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(f"{store}_server").url
    done = subprocess.run(
        [sys.executable, "-c", WAITING_HANDLER, url, secrets.token_hex(6)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 3, "it waited for the handler"
