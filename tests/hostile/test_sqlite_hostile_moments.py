"""SQLite: forks, closes, interrupts and delays in the moments that are worst for them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(90)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs of other users")


def run(program: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=80, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


IN_A_REQUEST = """
import faulthandler, os, sys, threading
import leasehold

faulthandler.dump_traceback_later(20, exit=True)
locks = leasehold.connect(f"sqlite:///{sys.argv[1]}")

def fork():
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)

armed = True
def at_the_worst_moment(event, arguments):
    # As a signal handler that waits for another thread: multiprocessing's Pool.terminate(), say.
    global armed
    if armed and event == "sqlite3.connect":
        armed = False
        thread = threading.Thread(target=fork if sys.argv[2] == "fork" else locks.close)
        thread.start()
        thread.join()

sys.addaudithook(at_the_worst_moment)
try:
    locks.lock("a").acquire().release()
except leasehold.LeaseholdError:
    assert sys.argv[2] == "close"
assert not armed
with leasehold.connect(f"sqlite:///{sys.argv[1]}") as again:
    again.lock("a").acquire(timeout=10).release()
print("over")
"""


@pytest.mark.parametrize("what", ["fork", "close"])
def test_another_thread_does_not_wait_for_ever_for_an_interrupted_request(tmp_path: Path, what: str) -> None:
    assert "over" in run(IN_A_REQUEST, tmp_path / "leases.db", what)


TWO_FORKS = """
import faulthandler, os, sys, threading

faulthandler.dump_traceback_later(30, exit=True)
between, go_on, used = threading.Event(), threading.Event(), threading.Event()

def wait():  # a hook that was registered earlier runs later
    if threading.current_thread().name == "B":
        between.set()
        go_on.wait(20)
        used.wait(0.5)

os.register_at_fork(before=wait)
import leasehold

path = sys.argv[1]
locks = leasehold.connect(f"sqlite:///{path}")
locks.lock("a").acquire().release()

def fork():
    if (pid := os.fork()) == 0:
        files = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                files.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                pass
        os._exit(any(file == path for file in files))
    print(threading.current_thread().name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)

def use():
    locks.lock("a").acquire().release()
    used.set()

b = threading.Thread(target=fork, name="B")
b.start()
between.wait(20)
a = threading.Thread(target=fork, name="A")
a.start()
a.join()
user = threading.Thread(target=use)
user.start()
go_on.set()
b.join()
user.join()
"""


def test_forks_of_two_threads_at_once_inherit_no_connection(tmp_path: Path) -> None:
    assert run(TWO_FORKS, tmp_path / "leases.db").split() == ["A", "0", "B", "0"], "SAFETY: a connection was inherited"


GROUP = """
import logging, os, random, secrets, signal, sys, time, traceback
import leasehold

folder = sys.argv[1]
path = f"{folder}/leases.db"
with leasehold.connect(f"sqlite:///{folder}/first.db", ttl=60) as locks:  # all that the others import is there
    with locks.lock("a"):
        locks.lock("a").try_acquire(timeout=0.1)
os.chown(folder, 2001, 2000)
os.chmod(folder, 0o770)

def as_user(uid, work):
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.setgroups([2000])
        os.setgid(2000)
        os.setuid(uid)
        os.umask(0o007)
        try:
            work(lambda text: os.write(writing, text.encode()))
        except BaseException as error:
            os.write(writing, repr(error).encode())
        os._exit(0)
    os.close(writing)
    return pid, lambda: os.read(reading, 1000).decode()

def begin(say):
    with open(path, "w"):
        os.chmod(path, 0o660)
    if sys.argv[2] == "owner":
        with leasehold.connect(f"sqlite:///{path}") as locks:
            locks.lock("a").acquire().release()
    say("begun")

def hold(say):
    lease = leasehold.connect(f"sqlite:///{path}", ttl=60).lock("a").acquire()
    say("held")
    time.sleep(100)

def wait(say):
    locks = leasehold.connect(f"sqlite:///{path}", ttl=60)
    assert locks.lock("a").try_acquire() is None
    say("waits")
    locks.lock("a").acquire(timeout=15).release()
    say(" had")

owner, hear = as_user(2001, begin)
assert hear() == "begun"
holder, hear = as_user(2002, hold)
assert (heard := hear()) == "held", heard
waiter, hear = as_user(2003, wait)
assert (heard := hear()) == "waits", heard
os.kill(holder, signal.SIGKILL)
os.waitpid(holder, 0)
print(hear())
os.waitpid(waiter, 0)
"""


@pytest.fixture
def folder_for_all() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield folder


@as_root
@pytest.mark.parametrize("made_by", ["owner", "member"])
def test_death_of_another_member_of_the_databases_group_is_noticed(folder_for_all: str, made_by: str) -> None:
    assert run(GROUP, folder_for_all, made_by).strip() == "had"


def test_interrupt_while_the_fifo_is_made_leaves_wake_ups_working(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    run(
        """
import os, stat, sys
import leasehold

class Interrupted(Exception):
    pass

armed = True
def interrupt(event, arguments):
    global armed
    if armed and event == "os.chmod" and isinstance(arguments[0], int):
        if stat.S_ISFIFO(os.fstat(arguments[0]).st_mode):
            armed = False
            raise Interrupted

sys.addaudithook(interrupt)
locks = leasehold.connect(f"sqlite:///{sys.argv[1]}")
try:
    locks.lock("a").try_acquire()
except Interrupted:
    pass
assert not armed
with locks.lock("a"):
    [fifo] = os.listdir(sys.argv[1] + "-wake")
""",
        path,
    )


def test_first_name_of_a_batch_that_takes_all_the_time_fails_no_other(tmp_path: Path) -> None:
    report = run(
        """
import os, sys, threading, time
import leasehold

slept = False
def slow(frame, event, argument):
    # The keeper's thread is delayed when it has read the first record of a batch.
    global slept
    if event == "call" and frame.f_code.co_name == "renew" and frame.f_code.co_filename.endswith("entry.py"):
        if not slept:
            slept = True
            time.sleep(1.5)

threading.settrace(slow)
failed = []
with leasehold.connect(f"sqlite:///{sys.argv[1]}", ttl=3) as locks:
    locks.on_event(lambda event: failed.append(repr(event)) if event.type == "renewal_failed" else None)
    leases = [locks.lock(name).acquire() for name in "abc"]
    ends = time.monotonic() + 20
    while locks.metrics().renewals < 3 and time.monotonic() < ends:
        time.sleep(0.02)
    for lease in leases:
        lease.check()
print(slept, failed)
""",
        tmp_path / "leases.db",
    )
    assert report.strip() == "True []"
