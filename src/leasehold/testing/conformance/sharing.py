"""Many at once: one ``Lock`` for all, one counter for all, and processes of both sides against each other."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ..counter import Fenced, check_history
from ..scene import Scene
from ..store import ASYNCIO, THREADS
from .fixtures import needs

WORKERS = 8


@pytest.mark.slow
def test_increments_under_one_lock_are_exact(scene: Scene) -> None:
    """Promise 1, S1; contract: one Lock object, shared by 8 threads or tasks, 100 unfenced increments each."""
    lock = scene.connect(ttl=30).lock(scene.name())
    each = max(10, scene.store.rounds // 10)
    value = inside = 0
    tokens: list[int] = []
    errors: list[BaseException] = []

    def work() -> None:
        nonlocal value, inside
        try:
            for _ in range(each):
                lease = lock.acquire(60)
                inside += 1
                assert inside == 1, "two at once"
                tokens.append(lease.token)
                seen = value
                time.sleep(0)  # let the others in, if anything does
                value = seen + 1
                inside -= 1
                assert lease.release()
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, name="conformance-worker") for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
    assert not errors
    assert value == WORKERS * each
    assert tokens == sorted(set(tokens))


def test_blocks_of_one_lock_do_not_mix_up(scene: Scene) -> None:
    """Contract: a Lock is shareable between threads and tasks, as a block too."""
    lock = scene.connect(ttl=30).lock(scene.name())
    jobs = [lock.block(lambda lease: bool(lease.remaining < 29.6)) for _ in range(WORKERS)]
    leases = []
    for job in jobs:
        assert job.error() is None
        leases.append(job.lease)
    assert len({lease.token for lease in leases}) == WORKERS
    assert not any(lease.valid for lease in leases)
    assert not any(lease.lost.is_set() for lease in leases)


def test_many_names_at_once(scene: Scene) -> None:
    """Promise 1: contention on some names does not disturb others; everything comes to an end."""
    sessions = [scene.connect(ttl=30) for _ in range(3)]
    names = [scene.name() for _ in range(5)]
    held: dict[str, int] = dict.fromkeys(names, 0)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                name = names[(number + turn) % len(names)]
                lease = sessions[number % len(sessions)].lock(name).acquire(60)
                held[name] += 1
                assert held[name] == 1, "two at once"
                time.sleep(0.001)
                held[name] -= 1
                assert lease.release()
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
    """S1 and PROOF's checker: 5 processes, threads and asyncio mixed, a fenced resource, the history checked."""
    resource = Fenced(tmp_path / "counter")
    resource.create()
    processes = [threads.process(side) for side in (THREADS, ASYNCIO, THREADS, ASYNCIO, THREADS)]
    rounds = max(5, threads.store.rounds // 50)
    for process in processes:
        process.send("count", name="counter", path=str(resource.path), rounds=rounds, ttl=20)
    history = [entry for process in processes for entry in process.answer()]
    check_history(history, resource.read())
    assert resource.read()["value"] == 5 * rounds
