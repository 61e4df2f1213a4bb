"""A short life of leases in an interpreter that was changed first: the program of `test_patched.py`.

Arguments: how it was changed, and a store's URL. It prints a report as JSON.
"""

import sys

HOW, URL = sys.argv[1:]

if HOW == "no-poll":  # as on Windows, and as eventlet leaves it
    import select

    for name in ("poll", "epoll"):
        delattr(select, name)
elif HOW == "gevent":
    from gevent import monkey

    monkey.patch_all()
elif HOW == "eventlet":
    import eventlet

    eventlet.monkey_patch()

import json  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402

import leasehold  # noqa: E402

HOLDER = """
import sys, time
import leasehold
locks = leasehold.connect(sys.argv[1])
lease = locks.lock("of a process").acquire()
print("held", flush=True)
time.sleep(1000)
"""


def seconds(began: float) -> float:
    return round(time.monotonic() - began, 3)


def until(what, limit: float = 20.0) -> None:
    ends = time.monotonic() + limit
    while not what():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.01)


def wait_for(locks: leasehold.Locks, name: str, before) -> float:
    """How long after ``before`` a waiter in a thread has the lease."""
    had = []

    def take() -> None:
        with locks.lock(name).acquire(timeout=30):
            had.append(time.monotonic())

    thread = threading.Thread(target=take)
    thread.start()
    until(lambda: (held := locks.inspect(name)) and held.waiters)
    began = time.monotonic()
    before()
    thread.join(30)
    return round(had[0] - began, 3)


report = {}
ticks = 0
over = threading.Event()


def tick() -> None:
    global ticks
    while not over.wait(0.05):
        ticks += 1


with leasehold.connect(URL) as locks, leasehold.connect(URL, ttl=3) as others:
    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    lease = others.lock("job").acquire()
    assert locks.lock("job").try_acquire() is None
    expires = others.inspect("job").expires
    until(lambda: (others.inspect("job").expires - expires).total_seconds() > 0.5)  # renewed
    lease.check()
    report["hand-over"] = wait_for(locks, "job", lease.release)
    with others.lock("job", on_lost="log").acquire() as lease:
        assert locks.break_lease("job", force=True)
        assert lease.lost.wait(10)
        report["lost"] = lease.lost_reason
        lease.release()
    if URL.startswith("sqlite"):
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, URL], stdout=subprocess.PIPE)
        assert holder.stdout.readline()
        report["death"] = wait_for(locks, "of a process", lambda: holder.send_signal(signal.SIGKILL))
        holder.wait()
    over.set()
    ticking.join(10)
report["ticks"] = ticks
print(json.dumps(report))
