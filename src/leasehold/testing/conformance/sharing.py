"""Many at once: one ``Lock`` for all, one counter for all, and processes of both sides against each other."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ..counter import Fenced, check_history
from ..handles import Lease
from ..scene import Scene
from ..store import ASYNCIO, THREADS
from .fixtures import needs

WORKERS = 8


class Visitors:
    """The holders inside a block: no two trust their leases at the same time.

    A lease that a release granted begins with a first term. A process that stalls for longer than that loses the lease
    inside the block: only then another holder may be inside too."""

    def __init__(self) -> None:
        self.inside: list[Lease] = []
        self.ran_out: list[Lease] = []

    def enter(self, lease: Lease) -> None:
        self.inside.append(lease)
        for other in list(self.inside):
            assert other is lease or not (other.valid and lease.valid), "two at once"

    def leave(self, lease: Lease) -> None:
        self.inside.remove(lease)
        if not lease.release():
            assert lease.ran_out()
            self.ran_out.append(lease)


@pytest.mark.slow
def test_increments_under_one_lock_are_exact(scene: Scene) -> None:
    """Promise 1, S1: one Lock object, shared by 8 threads or tasks, 100 unfenced increments each."""
    lock = scene.connect(ttl=30).lock(scene.name())
    each = max(10, scene.store.rounds // 10)
    value = 0
    visitors = Visitors()
    tokens: list[int] = []
    errors: list[BaseException] = []

    def work() -> None:
        nonlocal value
        try:
            for _ in range(each):
                lease = lock.acquire(60)
                visitors.enter(lease)
                tokens.append(lease.token)
                seen = value
                time.sleep(0)  # lets other threads run
                value = seen + 1
                visitors.leave(lease)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, name="conformance-worker") for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
    assert not errors
    assert len(set(tokens)) == WORKERS * each
    assert visitors.ran_out or (value == WORKERS * each and tokens == sorted(tokens))
    assert len(visitors.ran_out) <= WORKERS, "now and then, on a machine that stands still"


def test_blocks_of_one_lock_do_not_mix_up(scene: Scene) -> None:
    """Reference: threads and tasks can share a Lock, also as a block."""
    lock = scene.connect(ttl=30).lock(scene.name())
    jobs = [lock.block(lambda lease: bool(lease.remaining < 29.6)) for _ in range(WORKERS)]
    leases = []
    for job in jobs:
        assert job.error() is None
        leases.append(Lease(scene.api, job.lease))
    assert len({lease.token for lease in leases}) == WORKERS
    assert not any(lease.valid for lease in leases)
    assert not any(lease.lost.is_set() and not lease.ran_out() for lease in leases)


def test_many_names_at_once(scene: Scene) -> None:
    """Promise 1: contention on some names does not affect other names; every acquire ends."""
    sessions = [scene.connect(ttl=30) for _ in range(3)]
    names = [scene.name() for _ in range(5)]
    held = {name: Visitors() for name in names}
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                name = names[(number + turn) % len(names)]
                lease = sessions[number % len(sessions)].lock(name).acquire(60)
                held[name].enter(lease)
                time.sleep(0.001)
                held[name].leave(lease)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(n,), name="conformance-worker") for n in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
    assert not errors
    for name in names:
        assert not scene.held(name)
        assert scene.waiters(name) == 0


@needs("shared")
@pytest.mark.slow
def test_processes_raise_one_counter(threads: Scene, tmp_path: Path) -> None:
    """S1: 5 processes, threads and asyncio mixed, a fenced resource, the history checked."""
    resource = Fenced(tmp_path / "counter")
    resource.create()
    processes = [threads.process(side) for side in (THREADS, ASYNCIO, THREADS, ASYNCIO, THREADS)]
    rounds = max(5, threads.store.rounds // 50)
    for process in processes:
        process.send("count", name="counter", path=str(resource.path), rounds=rounds, ttl=20)
    history = [entry for process in processes for entry in process.answer()]
    check_history(history, resource.read())
    assert len(history) == 5 * rounds
    assert all(entry["written"] or entry["ran_out"] for entry in history)
    assert resource.read()["value"] == sum(entry["written"] for entry in history) >= 4 * rounds
