"""A drained process ends, though the signal that was to wake its main thread came at the wrong moment."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(signal, "sigwait"), reason="needs POSIX signals")

SCRIPT = """
import os, signal, threading, leasehold

locks = leasehold.connect("memory://")
locks.drain_on_signals()
os.kill(os.getpid(), signal.SIGTERM)
# Python notices a signal that comes between its last check and the system call only when the call returns.
# A signal that is taken from the queue is lost in the same way.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
signal.sigwait([signal.SIGTERM])
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
print("lost", flush=True)
threading.Event().wait()
"""

FORKED = """
import os, signal, time

def early():
    signal.raise_signal(signal.SIGTERM)

os.register_at_fork(after_in_child=early)
import leasehold

locks = leasehold.connect("memory://")
locks.drain_on_signals()
child = os.fork()
if child == 0:
    time.sleep(30)
    os._exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_signal_to_a_child_that_is_still_forking_ends_it() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "0\n"), ran.stderr


def test_lost_wakeup_of_the_main_thread_is_repeated() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=20)
    assert (ran.returncode, ran.stdout) == (0, "lost\n"), ran.stderr
