"""How leases and Locks end when something comes in between. Each of these cases was wrong once."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leasehold
from intercept import OPERATIONS, Intercepted
from leasehold.errors import StoreNotReady, StoreUnavailable
from leasehold.testing.faults import install
from leasehold.testing.handles import eventually


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[leasehold.Locks]:
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as locks:
        yield locks


def open_files() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass  # closed meanwhile, as that of the listing is
    return found


def in_child(work: Callable[[], object]) -> str:
    """What ``work`` returns in a forked child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, repr(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        result = file.read()
    os.waitpid(pid, 0)
    return result


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_forked_child_does_not_acknowledge_the_break_of_its_parents_lease(locks: leasehold.Locks) -> None:
    lease = locks.lock("job", ttl=30).acquire()
    locks.break_lease("job")
    assert lease.lost.wait(30)
    assert in_child(lease.release) == "False"
    assert locks.lock("job").try_acquire() is None  # the parent's body has not ended yet
    lease.release()
    assert locks.lock("job").acquire(20).release()


def test_grant_whose_answer_was_lost_is_given_back_when_the_store_is_not_ready() -> None:  # promise 4
    store = Intercepted("memory://ends-owes")

    def lose_the_answer() -> None:
        store.after.clear()
        store.before["acquire"] = refuse
        raise StoreUnavailable("lost answer")

    def refuse() -> None:
        raise StoreNotReady("read-only now")

    store.after["acquire"] = lose_the_answer
    with store.connect(ttl=300) as locks:
        with pytest.raises(StoreNotReady):
            locks.lock("job").acquire(60)
        assert store.begun["acquire"] == 2
        eventually(lambda: locks.inspect("job") is None)


def test_break_reaches_the_holder_of_a_lease_without_renewal(locks: leasehold.Locks) -> None:
    lease = locks.lock("job", ttl=100, renew=False).acquire()
    locks.break_lease("job")
    assert lease.lost.wait(30)
    lease.release()


def test_break_right_after_the_grant_reaches_the_holder() -> None:
    store = Intercepted("memory://ends-early-break")
    with store.connect(ttl=300) as locks, leasehold.connect("memory://ends-early-break") as other:
        # The wake-up goes to a waiter that has just been served, and has not been told so.
        store.after["acquire"] = lambda: other.break_lease("job")
        lease = locks.lock("job").acquire(5)
        assert lease.lost.wait(30)  # long before it is renewed
        lease.release()


def test_release_that_the_store_refuses_is_a_loss() -> None:
    with leasehold.connect("memory://ends-belied") as locks:
        block = locks.lock("job", on_lost="raise")
        install(locks).deaf = True

        def work() -> None:
            with block:
                locks.break_lease("job", force=True)

        with pytest.raises(leasehold.LeaseLost, match="no longer holds"):
            work()


def test_interrupted_enter_leaves_nothing_held(locks: leasehold.Locks) -> None:
    lock = locks.lock("job")

    def interrupted(self: leasehold.Lease) -> leasehold.Lease:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leasehold.Lease, "__enter__", interrupted)
        with pytest.raises(KeyboardInterrupt), lock:
            pass
    assert locks.inspect("job") is None
    # Which block a thread leaves that has entered none is clear only while there is a single one.
    lock.__enter__()
    elsewhere = threading.Thread(target=lock.__exit__, args=(None, None, None))
    elsewhere.start()
    elsewhere.join()
    assert locks.inspect("job") is None, "the interrupted block was left open"


def test_release_of_a_lost_lease_after_close_opens_nothing(tmp_path: Path) -> None:
    locks = leasehold.connect(f"sqlite:///{tmp_path}/leases.db")
    lease = locks.lock("job").acquire()
    locks.break_lease("job")
    assert lease.lost.wait(30)
    locks.close()
    assert not lease.release()
    del lease
    assert not [file for file in open_files() if str(tmp_path) in file]
    assert os.listdir(tmp_path / "leases.db-wake") == []
    with pytest.raises(leasehold.ShuttingDown):
        locks.inspect("job")


def test_interrupted_close_can_be_repeated(tmp_path: Path) -> None:
    store = Intercepted(f"sqlite:///{tmp_path}/leases.db")
    locks = store.connect(ttl=60)
    kept = locks.lock("job").acquire()

    def interrupt() -> None:
        if threading.current_thread() is threading.main_thread():  # the keeper may tidy up meanwhile
            raise KeyboardInterrupt

    store.before.update(dict.fromkeys(OPERATIONS, interrupt))
    with pytest.raises(KeyboardInterrupt):
        locks.close()
    store.before.clear()
    locks.close()
    assert not kept.valid
    with leasehold.connect(store.url) as others:
        assert others.lock("job").try_acquire() is not None


class Exiting:
    """A process on a file that another program writes to for ever. It exits when it is told to.

    ``said`` is what it says after leasehold's own work at exit."""

    def __init__(self, path: Path, code: str) -> None:
        begin = """
            import atexit, sys, threading, time
            kept = []
            atexit.register(lambda: print([lease.valid for lease in kept]))  # called after those that come later
            import leasehold, leasehold.core.timing
            from leasehold.testing.faults import install
        """
        lines = [*begin.splitlines(), *code.splitlines(), 'print("ready", flush=True)', "sys.stdin.readline()"]
        words = [sys.executable, "-c", "\n".join(line.strip(" ") for line in lines), f"sqlite:///{path}"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.stuck = sqlite3.connect(path, isolation_level=None)

    def __enter__(self) -> Exiting:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.stuck.close()

    def exit(self) -> float:
        """Make it exit; the seconds that it takes."""
        began = time.monotonic()
        self.said = self.process.communicate("\n", timeout=100)[0]
        assert self.process.returncode == 0
        return time.monotonic() - began


def test_busy_file_does_not_delay_the_exit_of_many_locks(tmp_path: Path) -> None:
    many = """
        many = [leasehold.connect(sys.argv[1]) for _ in range(40)]
        kept += [locks.lock(f"job {number}").acquire() for number, locks in enumerate(many)]
    """
    with Exiting(tmp_path / "leases.db", many) as process:
        assert process.process.stdout is not None
        assert process.process.stdout.readline() == "ready\n"
        process.stuck.execute("BEGIN IMMEDIATE")
        assert process.exit() < 25  # one after the other they would take 40
        assert process.said == f"{[False] * 40}\n"


def test_call_that_waits_for_a_busy_file_does_not_delay_the_exit(tmp_path: Path) -> None:
    """The call is in the middle of the store, where no other call can be."""
    waits = """
        leasehold.core.timing.CALL_LIMIT = 60.0
        locks = leasehold.connect(sys.argv[1], ttl=100)
        network = install(locks)
        sys.stdin.readline()
        threading.Thread(target=locks.lock("job").acquire, daemon=True).start()
        while not network.calls["acquire"]: time.sleep(0.01)
        time.sleep(0.2)
    """
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as locks:
        assert locks.inspect("job") is None
        with Exiting(tmp_path / "leases.db", waits) as process:
            process.stuck.execute("BEGIN IMMEDIATE")
            assert process.process.stdin is not None
            assert process.process.stdout is not None
            process.process.stdin.write("\n")
            process.process.stdin.flush()
            assert process.process.stdout.readline() == "ready\n"
            assert process.exit() < 30
            process.stuck.execute("ROLLBACK")
            assert locks.inspect("job") is None
