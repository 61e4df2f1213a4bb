"""What of whom is in the store: looked up while chaos goes on, and at its end, by what every user can ask."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection

import leasehold
from leasehold.core import clock, timing
from leasehold.testing.history import History
from leasehold.testing.scene import our_threads

EVERY = 0.25
"""Seconds between two looks."""
GONE_WITHIN = 45.0
"""How long what a closed ``Locks`` has used may take to go, on a machine that is as busy as this one."""


class Watch:
    """Notes who holds what, every so often. A server that is away is looked at the next time."""

    def __init__(self, url: str, history: History) -> None:
        self.history = history
        self._locks = leasehold.connect(url, owner="watch", namespace="chaos")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(EVERY):
            self.look()

    def look(self) -> None:
        began = clock.now()
        try:
            found = list(self._locks.leases())
        except leasehold.StoreError:
            return
        for each in found:
            self.history.add(
                "seen", each.name, owner=each.owner, token=each.token, ask=str(each.data or ""), invoked=began
            )

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._locks.close()


def see_that_nobody_waits(locks: leasehold.Locks, name: str, history: History, patience: float) -> None:
    """Of a name that is held by us: its queue is empty, or gets so as soon as the places of the dead have lapsed."""
    ends = clock.now() + patience
    while (info := locks.inspect(name)) is not None and info.waiters:
        if clock.now() > ends:
            history.add("left", name, outcome=f"{info.waiters} in the queue, when nobody is left who could wait")
            return
        time.sleep(0.1)


PLACES = timing.WAITER_TTL + 5.0
"""For how long the dead may be in a queue, and a while."""


def in_use() -> set[str]:
    """Threads of leasehold, and sockets on systems that tell, that this process has."""
    found = {f"the thread {each.name} ({each.ident})" for each in our_threads()}
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            leads_to = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # what it was listed with
        if leads_to.startswith("socket:"):
            found.add(f"a {leads_to}")
    return found


def see_that_all_is_gone(history: History, me: str, before: Collection[str], patience: float = GONE_WITHIN) -> None:
    """Of a ``Locks`` that was closed no thread is left, and no socket: nothing but what was there before."""
    ends = clock.now() + patience
    while left := in_use() - set(before):
        if clock.now() > ends:
            history.add("left", "-", owner=me, outcome=f"{', '.join(sorted(left))} of {me}, whose Locks is closed")
            return
        time.sleep(0.05)
