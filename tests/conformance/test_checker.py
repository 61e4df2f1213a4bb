"""The suite's own instruments can fail: a checker that accepts anything proves nothing."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import StoreUnavailable
from leasehold.core import timing
from leasehold.testing.counter import Fenced, check_history
from leasehold.testing.faults import install
from leasehold.testing.scene import Scene
from leasehold.testing.store import THREADS, StoreUnderTest

from .probes import MemoryProbe


def grant(token: int, owner: str, invoked: float, returned: float, written: bool = True) -> dict[str, Any]:
    return {"token": token, "owner": owner, "invoked": invoked, "returned": returned, "written": written}


GOOD = [grant(1, "a", 0, 1), grant(2, "b", 0, 2), grant(3, "a", 3, 4, written=False)]
RESOURCE = {"value": 2, "token": 2, "log": [[1, "a"], [2, "b"]]}


def test_a_good_history_is_accepted() -> None:
    check_history(GOOD, RESOURCE)


@pytest.mark.parametrize(
    ("history", "resource"),
    [
        ([*GOOD, grant(2, "c", 5, 6, written=False)], RESOURCE),
        ([grant(5, "a", 0, 1), grant(4, "b", 2, 3)], {"value": 2, "token": 5, "log": [[4, "b"], [5, "a"]]}),
        (GOOD, {"value": 2, "token": 2, "log": [[2, "b"], [1, "a"]]}),
        (GOOD, {"value": 2, "token": 2, "log": [[1, "b"], [2, "b"]]}),
        (GOOD, {"value": 1, "token": 2, "log": [[1, "a"], [2, "b"]]}),
        (GOOD, {"value": 1, "token": 1, "log": [[1, "a"]]}),
    ],
    ids=["token twice", "later is lower", "resource goes back", "foreign token", "lost update", "lost write"],
)
def test_a_bad_history_is_refused(history: list[dict[str, Any]], resource: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        check_history(history, resource)


def test_the_resource_refuses_an_older_token(tmp_path: Path) -> None:
    resource = Fenced(tmp_path / "counter")
    resource.create()
    assert resource.write(1, 7, "a")
    assert not resource.write(2, 6, "b")
    assert resource.write(2, 7, "a")
    assert resource.read()["value"] == 2


def test_negative_control_without_leases_updates_are_lost(tmp_path: Path) -> None:
    """The negative control: the same counter without a lease must fail, or the counter shows nothing."""
    resource = Fenced(tmp_path / "counter")
    resource.create()
    together = threading.Barrier(4)

    def count() -> None:
        for token in range(1, 11):
            value = resource.read()["value"]
            together.wait(60)
            resource.write(value + 1, token, "anybody")
            together.wait(60)

    workers = [threading.Thread(target=count) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    state = resource.read()
    assert state["value"] < len(state["log"]) == 40


def test_faults_happen_as_often_as_asked() -> None:
    with leasehold.connect("memory://checker") as locks:
        faults = install(locks)
        assert install(locks) is faults
        faults.lose_request("acquire", times=2)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                locks.lock("a").try_acquire()
            assert not locks.lock("a").locked()
        lease = locks.lock("a").try_acquire()
        assert lease is not None
        faults.delay_answer(0.2, "renew", times=1)
        begun = time.monotonic()
        lease.renew()
        assert time.monotonic() - begun >= 0.2
        faults.lose_answer("release", times=1)
        with pytest.raises(StoreUnavailable):
            lease.release()
        assert not locks.lock("a").locked()
        assert faults.calls["acquire"] == 3


def test_a_hanging_call_ends_when_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "CALL_LIMIT", 60.0)
    with leasehold.connect("memory://checker", ttl=300) as locks:
        faults = install(locks)
        faults.lose_request("acquire", noticed_after=60)

        def mend() -> None:
            while not faults.calls["acquire"]:
                time.sleep(0.01)
            time.sleep(0.2)
            faults.mend()

        mending = threading.Thread(target=mend)
        mending.start()
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable):
            locks.lock("b").try_acquire()
        assert 0.2 <= time.monotonic() - begun < 30
        mending.join()


@pytest.fixture
def over() -> Iterator[threading.Event]:
    over = threading.Event()
    yield over
    over.set()


def test_a_scene_names_what_is_left_of_it_alone(over: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left over. What an earlier test has left is not laid to this one's charge."""
    threading.Thread(target=over.wait, name="leasehold-of-another", daemon=True).start()
    scene = Scene(StoreUnderTest("memory", "memory://leftovers", MemoryProbe("leftovers")), THREADS)
    scene.close()
    scene.check()
    monkeypatch.setattr(leasehold.testing.scene, "SETTLED", 0.1)
    threading.Thread(target=over.wait, name="leasehold-leak", daemon=True).start()
    with pytest.raises(AssertionError, match=r"threads.*leasehold-leak"):
        scene.check()
    over.set()
    with leasehold.connect("memory://leftovers", namespace=scene.namespace) as locks, locks.lock("kept"):
        with pytest.raises(AssertionError, match=r"held or queued.*kept"):
            scene.check()
