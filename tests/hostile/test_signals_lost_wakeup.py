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


def test_lost_wakeup_of_the_main_thread_is_repeated() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=20)
    assert (ran.returncode, ran.stdout) == (0, "lost\n"), ran.stderr
