"""A service as a plain script, with threads: ``script.py URL GRACE HOW``."""

import signal
import sys
import threading
import time

from work import (
    NAMES,
    NAMESPACE,
    draining,
    fork_and_tell,
    handle_by_raising,
    say,
    start_threads,
    take_for_one,
    work,
)

import leasehold

url, grace, how = sys.argv[1:]
if how == "handler":
    signal.signal(signal.SIGTERM, lambda *_: say("handler"))
elif how == "exits":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
elif how == "raises":
    handle_by_raising()
elif how == "together":
    take_for_one()
locks = leasehold.connect(url, namespace=NAMESPACE)
locks.drain_on_signals(grace=float(grace))
if how == "again":
    locks.drain_on_signals(grace=0)
if how == "anew":  # it has outlived a drain
    try:
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait()
    except SystemExit:
        say("outlived", locks.drain())
    locks.close()
    locks = leasehold.connect(url, namespace=NAMESPACE)
    locks.drain_on_signals(grace=float(grace))
if how == "two":
    leasehold.connect(url, namespace="other").drain_on_signals(grace=float(grace))
if how in ("exits", "works"):  # in the main thread too, which the handler interrupts
    start_threads(locks, NAMES[1:])
    work(locks, NAMES[0])
else:
    start_threads(locks, stubborn=how == "stubborn")
if how == "forks":
    fork_and_tell()
if how == "returns":
    while not draining.is_set():
        time.sleep(0.01)
    time.sleep(0.2)  # and its main thread ends, while others work
elif how == "handler":
    threading.Event().wait(300)
else:
    while True:
        time.sleep(1)  # in steps, as docs/shutdown.md says: a signal may come just before the system call
