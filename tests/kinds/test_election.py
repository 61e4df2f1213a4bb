"""Five candidates; the leader is killed, paused and cut off, ten times each: at no instant do two believe to lead.

Each process notes, every few milliseconds, the time (of the one clock that all processes of a machine share) at which
it trusted its term. The intervals of two terms must not overlap; after a crash the next one begins within ttl + 1 s.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from pathlib import Path

import pytest

from leasehold import clock
from leasehold.testing import StoreUnderTest
from leasehold.testing.handles import eventually
from leasehold.testing.processes import Process

from .stores import REDLOCK, STORES, open_store

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(400)]
TTL = 2.0
ROUNDS = 10
TICK = 0.5
LONGEST = {"zookeeper": 1.15 * TTL + 1 + TICK + 0.5}
"""How long there may be no leader after a crash, where a store's page says another bound than ttl + 1 s: ZooKeeper ends
a session 1.15 · ttl + 1 s after its last sign of life, at its next tick; half a second is for the successor."""


class Candidates:
    def __init__(self, store: StoreUnderTest, side: str, folder: Path) -> None:
        self.store, self.side, self.folder = store, side, folder
        self.namespace = f"t{uuid.uuid4().hex[:12]}"
        self.locks = store.connect("threads", namespace=self.namespace)
        self.processes: list[Process] = []
        self.started = 0

    def start(self) -> None:
        process = Process(self.store, self.side, self.namespace)
        process.do("stand", name="leader", ttl=TTL, log=str(self.folder / f"log-{self.started}"))
        self.started += 1
        self.processes.append(process)

    def leader(self, after: int) -> tuple[Process, int]:
        """Who leads, with a token above ``after``, and has begun to; and that token."""

        def look() -> tuple[Process, int] | None:
            info = self.locks.inspect("leader")
            if info is None or info.token <= after or info.token not in self.terms():
                return None
            return next(((each, info.token) for each in self.processes if f"_{each.pid}_" in info.owner), None)

        found: tuple[Process, int] = eventually(look, 20, "somebody leads")
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
    faults = ["kill", "pause", "partition"] * ROUNDS
    random.Random(7).shuffle(faults)
    disturbed: list[int] = []
    killed: dict[int, float] = {}
    try:
        for _ in range(5):
            candidates.start()
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
                leader.do("partition", on=True)
            _, after = candidates.leader(token)
            if fault == "kill":
                candidates.start()
            elif fault == "pause":
                leader.resume()
            else:
                leader.do("partition", on=False)
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
