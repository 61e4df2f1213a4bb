"""What one test of the suite plays in: a namespace of its own, ``Locks`` on one side, other processes, the probe.

When the test is over, the scene closes everything and looks whether anything is left: in the store (by the probe), of
threads, of file descriptors, and whatever else the store names.
"""

from __future__ import annotations

import gc
import os
import threading
import uuid
from typing import Any

from .api import PATIENCE, Api, Tasks, make_api
from .faults import Faults
from .handles import Locks, eventually
from .processes import Process
from .store import Held, StoreUnderTest

KEPT = "leasehold-timer"
"""The one thread of leasehold that a process keeps."""
SETTLED = 3.0
"""How long after everything is closed something may still be on its way out."""


class Scene:
    def __init__(self, store: StoreUnderTest, side: str) -> None:
        self.store = store
        self.side = side
        self.namespace = f"t{uuid.uuid4().hex[:12]}"
        self.probe = store.probe
        self.ttl = store.ttl
        self.steady = max(1.5, 2 * store.ttl)
        """For what must *stay* held: a loaded machine that stalls for half a second does not lose it."""
        self.probe.names(self.namespace)  # whatever it needs is open now, and not counted later
        self._files = _open_files()
        self._leftovers = set(store.leftovers() if store.leftovers else ())
        self.api: Api = make_api(side)
        self._locks: list[Locks] = []
        self._processes: list[Process] = []
        self._faults: list[Faults] = []
        self._complaints: list[str] = []
        self._names = 0

    # What tests use.

    def name(self, hint: str = "name") -> str:
        """A name that nobody has used."""
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
        """Another process, of the same side unless another is given."""
        self._processes.append(Process(self.store, side or self.side, self.namespace))
        return self._processes[-1]

    @property
    def loop(self) -> Tasks:
        assert isinstance(self.api, Tasks)
        return self.api

    def held(self, name: str) -> list[Held]:
        """Who holds the name according to the probe, expired ones left out."""
        return [each for each in self.probe.holders(self.namespace, name) if each.expires_in > 0]

    def waiters(self, name: str) -> int:
        return self.probe.waiters(self.namespace, name)

    def until_held(self, name: str, within: float = PATIENCE) -> Held:
        found: Held = eventually(lambda: self.held(name), within, f"{name} is held")[0]
        return found

    def until_free(self, name: str, within: float = PATIENCE) -> None:
        """Until nobody holds the name and nobody waits for it, according to the probe."""
        eventually(lambda: not self.held(name) and not self.waiters(name), within, f"{name} is free")

    def until_waiting(self, name: str, count: int = 1, within: float = PATIENCE) -> None:
        eventually(lambda: self.waiters(name) == count, within, f"{count} wait for {name}")

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
        """Nothing is left over: PROOF 7."""
        eventually(lambda: not self._in_use(), SETTLED, "nothing is held or queued")
        assert not self._complaints, "the event loop complained"
        gc.collect()
        eventually(lambda: not _our_threads(), SETTLED, "no thread is left")
        if self.store.count_files:
            eventually(lambda: not _open_files() - self._files, SETTLED, "no file descriptor is left")
        if self.store.leftovers is not None and not any(
            process.killed or process.forgetful for process in self._processes
        ):
            assert set(self.store.leftovers()) <= self._leftovers, "something of a closed Locks is left"

    def _in_use(self) -> list[str]:
        names = self.probe.names(self.namespace)
        return [name for name in names if self.held(name) or self.waiters(name)]


def _our_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("leasehold") and name != KEPT]


def _open_files() -> set[tuple[int, str]]:
    """Open descriptors and what they lead to, on systems that tell."""
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
