"""Clients that go on taking leases while their servers suffer, and what must not have happened meanwhile.

18 take turns at one name, each for a moment. Two *stay* at each of three others: they hold it for longer than a ttl, so
that it lives by its renewals, while the other, of another ``Locks``, waits for it. So 4 names are held, and 20 wait.
Half of the clients are of ``leasehold``, half of ``leasehold.aio``; at each name there are some of both.
A store that forgets leases when its leader changes gives such a name to whoever waits, under the eyes of its holder.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import leasehold
from leasehold import aio
from leasehold.core import clock
from leasehold.core.claim import TAKEN
from leasehold.core.lease import state_of
from leasehold.testing.api import Api, Tasks, Threads, make_api
from leasehold.testing.handles import Lease, Locks, eventually

BRIEF = 18
"""How many take turns."""
NAMES = ("y0", "y1", "y2")
"""What is stayed at, by two clients each."""
SIDES = (Threads.side, Tasks.side)


def connect(api: Api, url: str, ttl: float) -> Locks:
    return Locks(api, api.call(aio.connect if isinstance(api, Tasks) else leasehold.connect, url, ttl=ttl))


class Term:
    """One holding of a name, and until when its holder trusted it, on the clock that deadlines are told by."""

    def __init__(self, lease: Lease) -> None:
        self.name, self.token, self.attempt = lease.name, lease.token, state_of(lease).claim.attempt
        self.began = clock.now()
        self.ended = float("inf")
        self.dropped = False

    def over(self, lease: Lease) -> None:
        """Whatever happens from here on: it was trusted until now, or until its deadline."""
        now = clock.now()
        self.ended = min(now, state_of(lease).deadline)
        self.dropped = lease.lost_reason == TAKEN and now < state_of(lease).deadline


class Crowd:
    def __init__(self, url: str, ttl: float, turn: float) -> None:
        self.url = url
        self._apis = [make_api(side) for side in SIDES]
        self._clients = [connect(api, url, ttl) for api in (*self._apis, *self._apis)]
        self.locks = [client.real for client in self._clients]
        self.terms: list[Term] = []
        self.lost = self.unavailable = 0
        self.errors: list[BaseException] = []
        self.served = [0] * BRIEF
        """Those who take turns."""
        self.stayed = dict.fromkeys(NAMES, 0)
        """Who has held a name for longer than a ttl, by name."""
        self.done = threading.Event()
        self._mutex = threading.Lock()
        works = [partial(self._take_turns, number, turn) for number in range(BRIEF)]
        works += [partial(self._stay, number, name, 1.5 * ttl) for number, name in enumerate((*NAMES, *NAMES))]
        self.threads = [threading.Thread(target=self._carry_out, args=(work,)) for work in works]
        for thread in self.threads:
            thread.start()

    def _carry_out(self, work: Callable[[], None]) -> None:
        while not self.done.is_set():
            try:
                work()
            except leasehold.StoreUnavailable:
                with self._mutex:
                    self.unavailable += 1
            except BaseException as error:
                self.errors.append(error)
                raise

    def _take_turns(self, number: int, seconds: float) -> None:
        self.hold(self._clients[number % len(self._clients)], "x", seconds)
        self.served[number] += 1

    def _stay(self, number: int, name: str, seconds: float) -> None:
        if self.hold(self._clients[number % len(self._clients)], name, seconds):
            self.stayed[name] += 1

    def hold(self, locks: Locks, name: str, seconds: float) -> bool:
        """Wait for a name and hold it for so long. True when it was held to the end."""
        lease = locks.lock(name).start(90).lease(200)
        term = Term(lease)
        self.terms.append(term)
        until = time.monotonic() + seconds
        while lease.valid and time.monotonic() < until and not self.done.is_set():
            time.sleep(0.005)
        term.over(lease)
        lost = not lease.valid
        self.lost += lost
        try:
            lease.release()
        except leasehold.StoreError:
            pass
        return not lost

    def finish(self) -> None:
        self.done.set()
        for thread in self.threads:
            thread.join(100)
        for client in self._clients:
            client.close()
        complaints = [complaint for api in self._apis for complaint in api.close()]
        self.errors += [RuntimeError(complaint) for complaint in complaints]

    def wrongs(self) -> list[str]:
        """What must not have happened."""
        said = [f"an error: {error!r}" for error in self.errors]
        if any(thread.is_alive() for thread in self.threads) or not all(self.served):
            said.append(f"somebody was never served: {self.served}")
        said += [f"a live lease was dropped: {vars(term)}" for term in self.terms if term.dropped]
        for name in ("x", *NAMES):
            terms = sorted((term for term in self.terms if term.name == name), key=lambda term: term.began)
            for before, after in itertools.pairwise(terms):
                if before.ended > after.began:
                    said.append(f"both held it: {vars(before)} and {vars(after)}")
                if before.token >= after.token:
                    said.append(f"tokens do not rise: {vars(before)} and {vars(after)}")
        return said

    def __str__(self) -> str:
        ends = f"{self.lost} lost, {self.unavailable} times unavailable"
        return f"{len(self.terms)} terms, {sum(self.stayed.values())} longer than a ttl, {ends}"


class Latecomer:
    """One client more, who waits for a name that others stay at. Its place in the queue expires behind its back: it has
    to notice, to queue again, and to be served in the end.

    ``entry(locks)`` is what tells its place from another, None when it has none; ``expire(locks)`` ends it."""

    def __init__(self, crowd: Crowd, side: str, entry: Callable[[Any], Any], expire: Callable[[Any], None]) -> None:
        self._api = make_api(side)
        self._client = connect(self._api, crowd.url, 30)
        locks = self._client.real
        self.served = threading.Event()
        self._crowd = crowd
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()
        before = eventually(lambda: entry(locks), 60, "it waits")
        expire(locks)
        eventually(lambda: self.served.is_set() or entry(locks) not in (None, before), 60, "it queues again")

    def _wait(self) -> None:
        while not self.served.is_set():
            try:
                self._crowd.hold(self._client, NAMES[0], 0.05)
                self.served.set()
            except leasehold.StoreUnavailable:
                continue

    def finish(self) -> None:
        assert self.served.wait(100), "it was never served"
        self._thread.join(20)
        self._client.close()
        assert not self._api.close()
