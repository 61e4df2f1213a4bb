"""What is done with SIGTERM and SIGINT in one process: by handlers that come and go, and by signals that meet."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import leasehold
import leasehold.core.timing
import leasehold.runtime.signals
from leasehold.core.claim import DRAINED

from .service import LIMIT, sides

CLOSED = {
    "threads": """
with leasehold.connect("memory://") as locks:
    locks.drain_on_signals()
""",
    "asyncio": """
async def main():
    async with aio.connect("memory://") as locks:
        locks.drain_on_signals()

asyncio.run(main())
""",
}
NEWCOMER = {
    "threads": """
def draining(locks):
    # Until it gives out no new leases.
    try:
        while True:
            locks.lock("probe").acquire().release()
            time.sleep(0.01)
    except leasehold.ShuttingDown:
        pass

first, second = leasehold.connect("memory://"), leasehold.connect("memory://")
leases = first.lock("one").acquire(), second.lock("two").acquire()
first.drain_on_signals()
os.kill(os.getpid(), signal.SIGTERM)
draining(first)
second.drain_on_signals()
first.drain_on_signals()
draining(second)
print("draining", [lease.valid for lease in leases])
os.kill(os.getpid(), signal.SIGTERM)
second.close()
first.close()
""",
    "asyncio": """
async def draining(locks):
    # Until it gives out no new leases.
    try:
        while True:
            await (await locks.lock("probe").acquire()).release()
            await asyncio.sleep(0.01)
    except leasehold.ShuttingDown:
        pass

async def main():
    global leases
    first, second = aio.connect("memory://"), aio.connect("memory://")
    leases = await first.lock("one").acquire(), await second.lock("two").acquire()
    first.drain_on_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    await draining(first)
    second.drain_on_signals()
    first.drain_on_signals()
    await draining(second)
    print("draining", [lease.valid for lease in leases])
    os.kill(os.getpid(), signal.SIGTERM)
    await second.close()
    await first.close()

asyncio.run(main())
""",
}
ENDING = """
def end():
    print("ending", flush=True)
    sys.stdin.read()  # of which signals are no end
    print("ended", flush=True)

leasehold.runtime.signals.TOGETHER = 300
atexit.register(end)
locks = leasehold.connect("memory://")
locks.drain_on_signals()
print("ready", flush=True)
while True:
    time.sleep(1)
"""


class Text:
    """A process that runs a text of these, and says where it is."""

    def __init__(self, text: str) -> None:
        imports = "import asyncio, atexit, os, signal, sys, threading, time, leasehold, leasehold.runtime.signals"
        pipe = subprocess.PIPE
        words = (sys.executable, "-c", f"{imports}\nfrom leasehold import aio\n{text}")
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def signal_at(self, line: str, number: int) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == line + "\n"
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str, str]:
        said, errors = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, said, errors

    def __enter__(self) -> Text:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()


@sides
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_do_what_they_did_before_when_all_locks_are_closed(side: str, number: int) -> None:
    with Text(CLOSED[side] + 'print("closed", flush=True)\nwhile True: time.sleep(1)') as process:
        process.signal_at("closed", number)
        code, _, errors = process.ended()
    assert code == -number, errors
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT), errors
    assert "drain" not in errors


@sides
def test_locks_registered_for_signals_during_a_drain_are_drained(side: str) -> None:
    """At once, and hurried like the others; to ask again changes nothing. Neither leaves a close that never ends."""
    before = "signal.signal(signal.SIGTERM, lambda *_: None)\nleasehold.runtime.signals.TOGETHER = 0\n"
    with Text(before + NEWCOMER[side] + "print(*{lease.lost_reason for lease in leases})") as process:
        code, said, errors = process.ended()
    assert (code, said) == (0, f"draining [True, True]\n{DRAINED}\n"), errors


def test_late_signal_of_the_same_request_does_not_cut_the_exit() -> None:
    """The drain was quick, and the other is late."""
    with Text(ENDING) as process:
        process.signal_at("ready", signal.SIGTERM)
        process.signal_at("ending", signal.SIGTERM)
        code, said, errors = process.ended()
    assert (code, said) == (0, "ended\n"), errors


def test_drain_on_signals_needs_the_main_thread(tmp_path: Path) -> None:
    found: list[Exception] = []

    def call(locks: leasehold.Locks) -> None:
        try:
            locks.drain_on_signals()
        except ValueError as error:
            found.append(error)

    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as locks:
        thread = threading.Thread(target=call, args=(locks,))
        thread.start()
        thread.join()
        with pytest.raises(ValueError, match="grace"):
            locks.drain_on_signals(grace=-1)
    assert "main thread" in str(found[0])
