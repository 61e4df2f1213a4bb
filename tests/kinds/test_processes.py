"""Readers and writers, and dining philosophers, as processes of which some are killed."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.handles import eventually

from .stores import REDLOCK, STORES, open_store
from .worker import LOST, TERM

WORKER = Path(__file__).with_name("worker.py")
PATIENCE = 240.0
pytestmark = pytest.mark.timeout(420)


def each_of(names: Sequence[str]) -> list[Any]:
    """For the parameters of a fixture: servers only in the long run."""
    long = (pytest.mark.server, pytest.mark.slow)
    return [each if each == "sqlite" else pytest.param(each, marks=long) for each in names]


@pytest.fixture(params=each_of(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreUnderTest:
    return open_store(request.param, request, tmp_path)


class Visit(NamedTuple):
    """From when until when a process was inside; one that was killed, until then."""

    pid: int
    what: tuple[str, ...]
    asked: float
    stood: float
    """When it had been told that it stands in the queue; when it went in, if it never waited."""
    stalled: float
    """For how long its process did not run meanwhile, at the longest."""
    entered: float
    left: float


class Crowd:
    """Processes of several roles, and their log."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.namespace = f"t{uuid.uuid4().hex[:12]}"
        self.running: list[tuple[subprocess.Popen[bytes], str, int]] = []
        self.killed: dict[int, float] = {}
        self.log = folder / "log"
        self.log.touch()

    def start(self, role: str, seat: int = 0) -> None:
        command = [sys.executable, str(WORKER), self.url, self.namespace, role, str(self.folder)]
        self.running.append((subprocess.Popen(command, env={**os.environ, "SEAT": str(seat)}), role, seat))

    def kill_one(self) -> None:
        """One of them dies, and another of its role takes its place."""
        process, role, seat = self.running.pop(random.randrange(len(self.running)))
        self.killed[process.pid] = time.monotonic()  # not later: as soon as it is dead another may go in
        process.kill()
        process.wait()
        self.start(role, seat)

    def run(self, visits: int, kills: int) -> list[Visit]:
        ready = [self.folder / f"ready-{process.pid}" for process, _, _ in self.running]
        eventually(lambda: all(each.exists() for each in ready), 100, what="all are there before one begins")
        (self.folder / "go").touch()
        begun = time.monotonic()
        lines = 0
        while lines < 2 * visits:
            assert time.monotonic() - begun < PATIENCE, f"{lines // 2} of {visits} visits: stuck"
            time.sleep(0.05)
            lines = self.log.read_bytes().count(b"\n")
            if kills and lines > 2 * visits * (len(self.killed) + 1) / (kills + 2) and len(self.killed) < kills:
                self.kill_one()
        (self.folder / "stop").touch()
        codes = [process.wait(60) for process, _, _ in self.running]
        assert set(codes) == {0}
        return self.read()

    def read(self) -> list[Visit]:
        found: dict[tuple[str, str], Visit] = {}
        lost = 0
        for line in self.log.read_text().splitlines():
            pid, what, *moments = line.split()
            if moments[4:] == [LOST]:
                del found[pid, moments[3]]
                lost += 1
                continue
            asked, stood, stalled, entered, *left = map(float, moments)
            until = left[0] if left else self.killed.get(int(pid), float("inf"))
            found[pid, moments[3]] = Visit(int(pid), tuple(what.split(",")), asked, stood, stalled, entered, until)
        assert lost <= len(found) / 20
        return sorted(found.values(), key=lambda visit: visit.entered)

    def close(self) -> None:
        for process, _, _ in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def crowd(store: StoreUnderTest, tmp_path: Path) -> object:
    crowd = Crowd(store.url, tmp_path)
    yield crowd
    crowd.close()


def clashes(visits: list[Visit]) -> list[tuple[Visit, Visit]]:
    """Pairs that were inside at the same time and must not have been: by entry, so each is met once."""
    found = []
    inside: list[Visit] = []
    for visit in visits:
        inside = [each for each in inside if each.left > visit.entered]
        shared = [each for each in inside if set(each.what) & set(visit.what) or "writer" in each.what + visit.what]
        found += [(each, visit) for each in shared if each.what != ("reader",) or visit.what != ("reader",)]
        inside.append(visit)
    return found


def test_the_check_sees_a_clash() -> None:
    def visit(what: str, entered: float, left: float) -> Visit:
        return Visit(1, (what,), 0, 0, 0, entered, left)

    assert not clashes([visit("reader", 0, 2), visit("reader", 1, 3), visit("writer", 3, 4)])
    assert clashes([visit("reader", 0, 2), visit("writer", 1, 3)])
    assert clashes([visit("writer", 0, 2), visit("reader", 1, 3)])
    assert clashes([visit("fork-1", 0, 2), visit("fork-1", 1, 3)])
    assert not clashes([visit("fork-1", 0, 2), visit("fork-2", 1, 3)])


def kept_its_place(visit: Visit) -> bool:
    """Whether it waited, and came when it was let in: only who stands still for TERM has to stand anew."""
    return visit.stood < visit.entered and visit.stalled < TERM / 2


def overtaken(visits: list[Visit]) -> list[tuple[Visit, Visit]]:
    """Writers that kept their place, each with who asked when the writer stood in the queue, and was inside before it.

    Both moments are clear of the store's order: the writer had its answer before the other asked, and nobody is inside
    with a writer, so whoever was let in after it went in after it had left."""
    found = []
    for place, writer in enumerate(visits):
        if writer.what == ("writer",) and kept_its_place(writer):
            found += [(writer, visit) for visit in visits[:place] if visit.asked > writer.stood]
    return found


def test_the_check_sees_who_was_overtaken() -> None:
    def visit(what: str, asked: float, stood: float, entered: float, left: float) -> Visit:
        return Visit(1, (what,), asked, stood, 0, entered, left)

    first, writer = visit("reader", 0, 0, 1, 4), visit("writer", 2, 2.1, 5, 6)
    ahead, late = visit("reader", 1.9, 2.2, 3, 4.5), visit("reader", 2.2, 2.3, 4.6, 4.7)
    assert not overtaken([first, ahead, writer])
    assert not overtaken([first, writer, late._replace(entered=6.1, left=6.2)])
    assert overtaken([first, ahead, late, writer]) == [(writer, late)]
    second = late._replace(what=("writer",))
    assert overtaken([first, ahead, second, writer]) == [(writer, second)]
    assert not overtaken([first, ahead, late, writer._replace(stalled=TERM)])


def test_writer_is_alone_among_readers_of_many_processes(crowd: Crowd) -> None:
    """4 writers and 8 readers, 2,000 visits, 6 killed: never a writer with anyone else, and no writer waits longer than
    for those who were ahead of it: nobody who came later was let in before it."""
    for _ in range(4):
        crowd.start("writer")
    for _ in range(8):
        crowd.start("reader")
    visits = crowd.run(2000, kills=6)
    assert not clashes(visits)
    assert len(crowd.killed) == 6
    writers = [visit for visit in visits if visit.what == ("writer",)]
    readers = [visit for visit in visits if visit.what == ("reader",)]
    assert len(writers) > 200
    assert any(one.left > two.entered and one.pid != two.pid for one, two in itertools.pairwise(readers))
    judged = [writer for writer in writers if kept_its_place(writer)]
    assert len(judged) > 100
    assert overtaken(visits) == []


@pytest.mark.parametrize("store", each_of([*STORES, REDLOCK]), indirect=True)
def test_dining_philosophers_never_share_a_fork_and_never_deadlock(crowd: Crowd) -> None:
    """Five, each with two forks of five, named in random order: 1,000 meals, no deadlock, never a fork in two hands.

    Where waiters are served in order nobody goes hungry either."""
    for seat in range(5):
        crowd.start("philosopher", seat)
    meals = crowd.run(1000, kills=0)
    assert not clashes(meals)
    least = 0 if crowd.url.startswith(REDLOCK) else 20
    assert all(sum(meal.pid == process.pid for meal in meals) > least for process, _, _ in crowd.running)
