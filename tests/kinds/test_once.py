"""Eight processes, one piece of work, two of them killed in the middle: it is completed once, and all say the same."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.counter import Fenced
from leasehold.testing.handles import eventually
from leasehold.testing.processes import Process

from .stores import STORES, open_store

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreUnderTest:
    return open_store(request.param, request, tmp_path)


def at_work(locks: Any, processes: list[Process], gate: Path) -> Process | None:
    """Which of them holds the lease and is in the middle of the work; the name of an owner has its pid."""
    info, file = locks.inspect("init"), Path(f"{gate}-begun")
    begun = file.read_text().splitlines() if file.exists() else []
    return next((each for each in processes if info and f"_{each.pid}_" in info.owner and str(each.pid) in begun), None)


@pytest.mark.parametrize("side", ["threads", "asyncio"])
def test_eight_processes_two_kills(store: StoreUnderTest, side: str, tmp_path: Path) -> None:
    namespace = f"t{uuid.uuid4().hex[:12]}"
    locks = store.connect("threads", namespace=namespace)
    resource = Fenced(tmp_path / "counter")
    resource.create()
    processes = [Process(store, side, namespace) for _ in range(8)]
    try:
        for version in (1, 2):
            gate = tmp_path / f"gate-{version}"
            options = {"name": "init", "path": str(resource.path), "gate": str(gate), "ttl": 1.5, "version": version}
            for process in processes:
                process.send("work", **options)
            for _ in range(2 if version == 1 else 0):
                holder = eventually(lambda: at_work(locks, processes, gate))  # noqa: B023
                assert resource.read()["value"] == 0, "nobody has come to the end"
                holder.kill()
                processes.remove(holder)
                holder.close()
            gate.touch()
            outcomes = [process.answer() for process in processes]
            assert {each["status"] for each in outcomes} == {"done"}
            assert len({(each["token"], each["owner"], each["finished"], each["attempts"]) for each in outcomes}) == 1
            assert [each["ran"] for each in outcomes].count(True) == 1
            assert resource.read()["value"] == version, "its effect was made once"
    finally:
        for process in processes:
            process.close()
        locks.close()
