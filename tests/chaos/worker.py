"""A process that takes leases and writes under them until its standard input ends."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import leasehold
from leasehold.core import clock
from leasehold.testing.history import History
from leasehold.testing.inside import acquired, deadline

from .resource import Counters
from .watching import in_use, see_that_all_is_gone

Shared = tuple[History, leasehold.Locks | None]
LONG = 0.015
"""How many bodies take a few ttls: what is renewed can be lost, and whoever is killed in one is missed."""
HASTY = 0.1
"""How many give up soon, and then are to hold nothing, nor wait, whatever became of what they had asked."""


class Worker:
    """One who takes leases; those of a process share its :class:`leasehold.Locks` and its history."""

    def __init__(
        self, me: str, folder: str, url: str, names: list[str], ttl: float, clients: int, shared: Shared
    ) -> None:
        self.me = me
        self.calm = clients > 1
        self.names = names
        self.ttl = ttl
        self.history, self.locks = shared
        self.counters = Counters(Path(folder) / "resource.db", fenced=url != "naive")
        self.asks = 0
        self.holding = {name: os.open(Path(folder) / f"{name}.holder", os.O_RDWR) for name in names}
        self.wanted = {name: os.open(Path(folder) / f"{name}.want", os.O_RDONLY) for name in names}

    def work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            name = random.choice(self.names)
            self.asks += 1
            ask = f"{self.me}.{self.asks}"
            if self.locks is None:
                self.naive(name, ask)
            else:
                self.lease(name, ask, stop)
            time.sleep(random.uniform(0, 0.01))

    def lease(self, name: str, ask: str, stop: threading.Event) -> None:
        invoked, lease, outcome = clock.now(), None, "unknown"
        assert self.locks is not None
        patience = random.uniform(0.0, 0.3) if not self.calm and random.random() < HASTY else 30.0
        try:
            lease = self.locks.lock(name, data=ask, on_lost=self.told).acquire(timeout=patience, cancel=stop)
            outcome = "granted"
        except (leasehold.AcquireTimeout, leasehold.AcquireCancelled):
            outcome = "busy"
        except leasehold.StoreError as error:
            outcome = f"unknown: {error}"
        token = 0
        if lease is not None:
            token, invoked = lease.token, acquired(lease)  # what granted it was sent then, after a wait perhaps
        self.history.add("acquire", name, owner=ask, token=token, invoked=invoked, outcome=outcome, ask=ask)
        if lease is None:
            return
        self.write(name, ask, token, lease)
        invoked = clock.now()
        try:
            outcome = "released" if lease.release() else "refused"
        except leasehold.StoreError:
            outcome = "unknown"
        self.history.add("release", name, owner=ask, token=token, invoked=invoked, outcome=outcome, ask=ask)
        self.say_it_is_over(name, token)

    def told(self, lease: Any) -> None:
        now = clock.now()
        lost = min(deadline(lease), now)
        self.history.add("lost", lease.name, owner=lease.data, token=lease.token, invoked=lost, returned=now)

    def naive(self, name: str, ask: str) -> None:
        invoked = clock.now()
        while not self.counters.naive_take(name, clock.now(), self.ttl):
            time.sleep(0.005)
        token = clock.now_us()  # only so that the judge can tell one holding from another
        self.history.add("acquire", name, owner=ask, token=token, invoked=invoked, outcome="granted")
        self.write(name, ask, token, None)
        self.counters.naive_free(name)
        self.say_it_is_over(name, token)

    def say_who_holds(self, name: str, who: str) -> None:
        os.pwrite(self.holding[name], who.ljust(60).encode(), 0)

    def say_it_is_over(self, name: str, token: int) -> None:
        if str(token).encode() in os.pread(self.holding[name], 60, 0):
            self.say_who_holds(name, "")

    def write(self, name: str, ask: str, token: int, lease: Any) -> None:
        """Check, read, write; several times. Faults may come between any two lines."""
        long = not self.calm and (random.random() < LONG or os.pread(self.wanted[name], 4, 0) == b"long")
        self.say_who_holds(name, f"{self.me} {token} {'long' if long else 'short'}")
        self.write_often(name, ask, token, lease, long)

    def write_often(self, name: str, ask: str, token: int, lease: Any, long: bool) -> None:
        held = {"owner": ask, "token": token}
        for _ in range(60 if long else 1 if self.calm else random.randint(1, 12)):
            before = clock.now()
            valid = lease is None or lease.valid
            self.history.add("check", name, outcome="valid" if valid else "invalid", invoked=before, **held)
            if not valid:
                return
            value = self.counters.read(name, token)
            time.sleep(random.uniform(0, 0.1 if long else 0.0 if self.calm else 0.004))
            self.history.add("begin", name, **held)  # if it is killed now, nobody knows whether it wrote
            written = value is not None and self.counters.write(name, value + 1, token, ask)
            self.history.add("write", name, outcome="accepted" if written else "refused", **held)
            if not written:
                return


def die_with_parent() -> None:
    """Also when it is stopped: a worker that somebody has left with SIGSTOP would be there for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def go_by(path: Path) -> None:
    """Have a wall clock of our own, as far ahead of the true one as the file says now. (libfaketime would do so for C
    too, but the waits of threads come late under it.)"""
    file = os.open(path, os.O_RDONLY)
    true = time.time_ns

    def time_ns() -> int:
        return true() + int(float(os.pread(file, 20, 0) or 0.0) * 1e9)

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


def stop_with_input(stop: threading.Event) -> None:
    """The end of standard input sets this event."""

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()


def main() -> None:
    die_with_parent()
    logging.getLogger("leasehold").setLevel(logging.CRITICAL)
    config = json.loads(sys.argv[1])
    go_by(Path(config["folder"]) / f"{config['me']}.wall")
    me, url, clients = config["me"], config["url"], config["clients"]
    history = History(Path(config["folder"]) / f"{me}.history", now=clock.now)
    before = in_use()
    locks = None if url == "naive" else leasehold.connect(url, owner=me, namespace="chaos", ttl=config["ttl"])
    stop = threading.Event()

    def work(number: int) -> None:
        try:
            Worker(**{**config, "me": f"{me}.{number}" if number else me}, shared=(history, locks)).work(stop)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # one thread that dies is not to go unseen

    others = [threading.Thread(target=work, args=(number,)) for number in range(1, clients)]
    for each in others:
        each.start()

    stop_with_input(stop)
    work(0)
    for each in others:
        each.join()
    if locks is not None:
        locks.close()
        see_that_all_is_gone(history, me, before)
    history.close()


if __name__ == "__main__":
    main()
