"""The world of one test of the suite: a namespace of its own, ``Locks`` of one side, other processes, the probe.

When the test is over, the scene closes everything and looks whether anything is left: in the store (by the probe), of
threads, of file descriptors, and whatever else the store names.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection
from typing import Any

from .api import PATIENCE, Api, Tasks, make_api
from .faults import Faults
from .handles import Locks, eventually
from .processes import Process
from .store import Held, StoreUnderTest

KEPT = "leasehold-timer"
"""The only thread of leasehold that a process keeps."""
UNSEEN = 0.2
"""How long a waiter without a queue has to begin waiting, in seconds."""
SETTLED = 10.0
"""How long after ``close`` something may still be ending, in seconds."""


class Scene:
    def __init__(self, store: StoreUnderTest, side: str) -> None:
        self.store = store
        self.side = side
        self.namespace = f"t{uuid.uuid4().hex[:12]}"
        self.probe = store.probe
        self.ttl = store.ttl
        self.steady = max(1.5, 2 * store.ttl)
        """A ttl for leases that must *stay* held: a loaded machine that stalls for half a second does not lose them."""
        self.probe.names(self.namespace)  # whatever it needs is open now, and not counted later
        self._files = _open_files()
        self._threads = set(our_threads())
        self._leftovers = set(store.leftovers() if store.leftovers else ())
        self.api: Api = make_api(side)
        self._locks: list[Locks] = []
        self._processes: list[Process] = []
        self._faults: list[Faults] = []
        self._complaints: list[str] = []
        self._names = 0

    # What tests use.

    def name(self, hint: str = "name") -> str:
        """A name that was not used before."""
        self._names += 1
        return f"{hint}-{self._names}"

    def connect(self, **options: Any) -> Locks:
        options.setdefault("namespace", self.namespace)
        options.setdefault("ttl", self.ttl)
        locks = Locks(self.api, self.api.call(self.store.connect, self.side, **options))
        self._locks.append(locks)
        if self.store.latency:
            locks.faults().latency = self.store.latency
        return locks

    def faulty(self, **options: Any) -> tuple[Locks, Faults]:
        """A ``Locks`` whose calls can be made to fail."""
        locks = self.connect(**options)
        self._faults.append(locks.faults())
        return locks, self._faults[-1]

    def process(self, side: str | None = None) -> Process:
        """Another process; by default of the same side."""
        self._processes.append(Process(self.store, side or self.side, self.namespace))
        return self._processes[-1]

    @property
    def loop(self) -> Tasks:
        assert isinstance(self.api, Tasks)
        return self.api

    def held(self, name: str) -> list[Held]:
        """The holders of the name according to the probe, without expired holders."""
        return [each for each in self.probe.holders(self.namespace, name) if each.expires_in > 0]

    def waiters(self, name: str) -> int:
        return self.probe.waiters(self.namespace, name)

    def until_held(self, name: str, within: float = PATIENCE) -> Held:
        found: Held = eventually(lambda: self.held(name), within, f"{name} is held")[0]
        return found

    def until_free(self, name: str, within: float = PATIENCE) -> None:
        """Wait until the name has no holder and no waiter, according to the probe."""
        eventually(lambda: not self.held(name) and not self.waiters(name), within, f"{name} is free")

    def until_waiting(self, name: str, count: int = 1, within: float = PATIENCE) -> None:
        """Wait until the name has that many waiters. Without a queue this cannot be seen: sleep for a while instead."""
        if not self.store.fair:
            time.sleep(UNSEEN)
            return
        eventually(lambda: self.waiters(name) == count, within, f"{count} wait for {name}")

    def until_others_wait(self, name: str) -> None:
        """Wait until the name has a waiter; without a queue, sleep for as long as it takes to begin waiting."""
        if self.store.fair:
            self.until_waiting(name)
        else:
            time.sleep(0.3)

    # The end.

    def close(self) -> None:
        for faults in self._faults:
            faults.mend()
        for process in self._processes:
            process.close()
        for locks in self._locks:
            locks.close()
        self._complaints = self.api.close()
        self._locks.clear()

    def check(self) -> None:
        """Nothing is left over (rule "left over" of docs/design/13-proof.md)."""
        _all_gone(self._in_use, "held or queued")
        assert not self._complaints, "the event loop complained"
        gc.collect()
        _all_gone(lambda: set(our_threads()) - self._threads, "threads")
        if self.store.count_files:
            _all_gone(lambda: _open_files() - self._files, "file descriptors")
        if self.store.leftovers is not None and not any(
            process.killed or process.forgetful for process in self._processes
        ):
            leftovers = self.store.leftovers
            _all_gone(lambda: set(leftovers()) - self._leftovers, "of a closed Locks")

    def _in_use(self) -> list[str]:
        names = self.probe.names(self.namespace)
        return [name for name in names if self.held(name) or self.waiters(name)]


def _all_gone(left: Callable[[], Collection[object]], what: str) -> None:
    ends = time.monotonic() + SETTLED
    while found := left():
        assert time.monotonic() < ends, f"left after {SETTLED:g} s, {what}: {found}"
        time.sleep(0.005)


def our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("leasehold") and thread.name != KEPT]


def _open_files() -> set[tuple[int, str]]:
    """Open file descriptors and their targets, on systems that list them."""
    found = set()
    try:
        for fd in os.listdir("/proc/self/fd"):
            try:
                found.add((int(fd), os.readlink(f"/proc/self/fd/{fd}")))
            except OSError:
                continue
    except OSError:
        pass
    return found
