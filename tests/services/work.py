"""What the services of these tests do: hold three leases, with work that takes SECONDS from the signal on."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import leasehold

if "SERVICE_URL" in os.environ:  # a process of these tests, and not the tests themselves
    from first_terms import lengthen

    lengthen(60.0, os.environ["SERVICE_URL"])  # in which a successor may come, however busy the machine

import leasehold.core.drain
import leasehold.runtime.signals

NAMES = ("one", "two", "three")
NAMESPACE = os.environ.get("SERVICE_NAMESPACE", "")
SECONDS = float(os.environ.get("SERVICE_SECONDS", "2"))
TTL = 100.0
"""So long that who gets a lease in a test did not get it because its holder's had run out: two thirds of it, that are
left whenever a holder ends, are longer than any test waits. (ZooKeeper's sessions are not much longer.)"""
FOR_EVER = 300.0
"""How long a stubborn body goes on, though its lease is lost."""

draining = threading.Event()
"""Set when a drain begins in this process, by what the log says."""


class Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "lease_event", None) == "drain":
            draining.set()


logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
logging.getLogger("leasehold").addHandler(Listener())


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # one write: threads must not mix their lines


def work(locks: leasehold.Locks, name: str, stubborn: bool = False) -> None:
    try:
        with locks.lock(name, ttl=TTL, on_lost="raise") as lease:
            say("holds", name)
            while not draining.is_set():
                time.sleep(0.01)
            ends = time.monotonic() + SECONDS
            while time.monotonic() < ends and lease.valid:
                time.sleep(0.02)
            if stubborn:
                time.sleep(FOR_EVER)
        say("done", name, time.monotonic())
    except leasehold.LeaseLost as lost:
        say("cut", name, lost.reason)


def start_threads(locks: leasehold.Locks, names: Sequence[str] = NAMES, stubborn: bool = False) -> None:
    be_patient(stubborn)
    draining.clear()  # by a drain that this process has outlived
    for name in names:
        worker = threading.Thread(target=work, args=(locks, name, stubborn), daemon=True)
        worker.start()
        atexit.register(worker.join, 30.0)  # for what it has to say; its lease is over by then
    waiter = threading.Thread(target=wait_in_vain, args=(locks,), daemon=True)
    waiter.start()
    atexit.register(waiter.join, 30.0)


def fork_and_tell() -> None:
    """A child that sleeps; and a thread that says how it has ended."""
    child = os.fork()
    if child == 0:
        say("forked", os.getpid())
        for _ in range(int(FOR_EVER)):
            time.sleep(1)  # in steps, as docs/shutdown.md says: a signal may come just before the system call
        os._exit(9)

    def tell() -> None:
        say("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    threading.Thread(target=tell, daemon=True).start()


def be_patient(stubborn: bool) -> None:
    """A drain that waits for ever for bodies that were told of their loss: it can only be ended from outside."""
    if stubborn:
        leasehold.core.drain.UNWIND = FOR_EVER  # type: ignore[attr-defined]


def handle_by_raising() -> None:
    def handler(*_: object) -> None:
        raise RuntimeError("told to stop")

    signal.signal(signal.SIGTERM, handler)


def take_for_one() -> None:
    """All signals of a test come together, however long it takes to send them."""
    leasehold.runtime.signals.TOGETHER = FOR_EVER


def wait_in_vain(locks: leasehold.Locks) -> None:
    try:
        locks.lock("taken").acquire()
    except leasehold.ShuttingDown:
        say("sent off")


async def work_in_task(locks: Any, name: str, stubborn: bool) -> None:
    try:
        async with locks.lock(name, ttl=TTL, on_lost="log" if stubborn else "cancel"):
            say("holds", name)
            while not draining.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await asyncio.sleep(FOR_EVER if stubborn else SECONDS)
        say("done", name, time.monotonic())
    except leasehold.LeaseLost as lost:
        say("cut", name, lost.reason)


async def wait_in_vain_in_task(locks: Any) -> None:
    try:
        await locks.lock("taken").acquire()
    except leasehold.ShuttingDown:
        say("sent off")


def start_tasks(locks: Any, stubborn: bool = False) -> list[asyncio.Task[None]]:
    be_patient(stubborn)
    tasks = [asyncio.create_task(work_in_task(locks, name, stubborn)) for name in NAMES]
    return [*tasks, asyncio.create_task(wait_in_vain_in_task(locks))]
