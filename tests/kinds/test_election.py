"""Five candidates; the leader is killed, paused and cut off, ten times each: at no instant do two believe to lead.

Each process notes, every few milliseconds, the time (of the one clock that all processes of a machine share) at which
it trusted its term. The intervals of two terms must not overlap; after a crash the next one begins within ttl + 1 s.

Each candidate reaches its servers through proxies of its own, so that it can be cut off in earnest: its connections
stay open and nothing passes. When that ends, what was kept back arrives after all, or is lost with its connections.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import re
import time
import uuid
from pathlib import Path

import pytest

from leasehold.core import clock
from leasehold.testing import StoreUnderTest
from leasehold.testing.handles import eventually
from leasehold.testing.processes import Process
from servers.proxy import Proxy

from .stores import REDLOCK, STORES, open_store

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(400)]
TTL = 2.0
ROUNDS = 10
TICK = 0.5
LONGEST = {"zookeeper": 1.15 * TTL + 1 + TICK + 0.5}
"""How long there may be no leader after a crash, where a store's page says another bound than ttl + 1 s: ZooKeeper ends
a session 1.15 · ttl + 1 s after its last sign of life, at its next tick; half a second is for the successor."""


class Candidate(Process):
    """A process, and the network between it and its servers. The embedded store has none: there the client loses calls
    before they get to the file."""

    def __init__(self, store: StoreUnderTest, side: str, namespace: str) -> None:
        self.proxies: list[Proxy] = []
        with contextlib.ExitStack() as ways:

            def lead_through(server: re.Match[str]) -> str:
                self.proxies.append(ways.enter_context(Proxy(int(server[1]))))
                return f"127.0.0.1:{self.proxies[-1].port}"

            url = re.sub(r"127\.0\.0\.1:(\d+)", lead_through, store.url)
            super().__init__(dataclasses.replace(store, url=url), side, namespace)
            self._ways = ways.pop_all()

    def cut_off(self) -> None:
        if not self.proxies:
            self.do("partition", on=True)
        for proxy in self.proxies:
            proxy.blackhole()

    def reconnect(self, late: bool) -> None:
        """``late``: what was sent meanwhile arrives now."""
        if not self.proxies:
            self.do("partition", on=False)
        for proxy in self.proxies:
            if not late:
                proxy.reset()
            proxy.all_well()

    def close(self) -> None:
        super().close()
        self._ways.close()


class Candidates:
    def __init__(self, store: StoreUnderTest, side: str, folder: Path) -> None:
        self.store, self.side, self.folder = store, side, folder
        self.namespace = f"t{uuid.uuid4().hex[:12]}"
        self.locks = store.connect("threads", namespace=self.namespace)
        self.processes: list[Candidate] = []
        self.started = 0

    def start(self) -> None:
        process = Candidate(self.store, self.side, self.namespace)
        process.do("stand", name="leader", ttl=TTL, log=str(self.folder / f"log-{self.started}"))
        self.started += 1
        self.processes.append(process)

    def leader(self, after: int) -> tuple[Candidate, int]:
        """Who leads, with a token above ``after``, and has begun to; and that token."""

        def look() -> tuple[Candidate, int] | None:
            info = self.locks.inspect("leader")
            if info is None or info.token <= after or info.token not in self.terms():
                return None
            return next(((each, info.token) for each in self.processes if f"_{each.pid}_" in info.owner), None)

        found: tuple[Candidate, int] = eventually(look, 20, "somebody leads")
        return found

    def terms(self) -> dict[int, tuple[float, float]]:
        """When each term was believed in: first and last, by token."""
        found: dict[int, list[float]] = {}
        for log in self.folder.glob("log-*"):
            for line in log.read_text().splitlines(keepends=True):
                token, _, moment = line.partition(" ")
                if moment.endswith("\n"):  # a killed process may have been writing it
                    found.setdefault(int(token), []).append(float(moment))
        return {token: (min(moments), max(moments)) for token, moments in sorted(found.items())}

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.close()
        self.locks.close()


@pytest.mark.parametrize("side", ["threads", "asyncio"])
@pytest.mark.parametrize("name", [*STORES, REDLOCK])
def test_terms_never_overlap(name: str, side: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    candidates = Candidates(open_store(name, request, tmp_path), side, tmp_path)
    networked = name != "sqlite"
    faults = ["kill", "pause", "partition"] * ROUNDS
    random.Random(7).shuffle(faults)
    disturbed: list[int] = []
    killed: dict[int, float] = {}
    try:
        for _ in range(5):
            candidates.start()
        assert all(bool(each.proxies) == networked for each in candidates.processes)
        token = 0
        for fault in faults:
            leader, token = candidates.leader(token)
            disturbed.append(token)
            time.sleep(random.random() * TTL / 3)  # at any moment between two renewals
            if fault == "kill":
                killed[token] = clock.now()
                leader.kill()
                candidates.processes.remove(leader)
                leader.close()
            elif fault == "pause":
                leader.pause()
            else:
                leader.cut_off()
            _, after = candidates.leader(token)
            if fault == "kill":
                candidates.start()
            elif fault == "pause":
                leader.resume()
            else:
                leader.reconnect(late=random.random() < 0.5)
            token = after - 1  # the one that was just found is the next to be disturbed
        time.sleep(0.2)
        terms = candidates.terms()
    finally:
        candidates.close()
    assert set(disturbed) <= terms.keys()
    assert len(set(disturbed)) == len(faults), "each fault hit another term"
    assert len(terms) > len(faults)
    waits = []
    for (earlier, (_, last)), (later, (first, _)) in itertools.pairwise(terms.items()):
        assert last < first, f"term {earlier} was believed in until {last}, term {later} from {first}"
        if earlier in killed:
            waits.append(first - killed[earlier])
    print(f"{name} {side}: {len(terms)} terms; after a crash no leader for {min(waits):.2f} to {max(waits):.2f} s")
    assert len(waits) == ROUNDS
    assert max(waits) < LONGEST.get(name, TTL + 1), f"no leader for {max(waits):.2f} s after a crash"
