import time
from pathlib import Path

import pytest

from leasehold.core import clock

from .clocks import StepClock

HERE = Path(__file__).parent


@pytest.fixture
def step_clock(monkeypatch: pytest.MonkeyPatch) -> StepClock:
    """Steps the wall clock that the embedded stores put into tokens."""

    def step(seconds: float) -> None:
        monkeypatch.setattr(clock, "wall_us", lambda: time.time_ns() // 1000 + int(seconds * 1e6))

    return step


SEVERAL_SECONDS = {
    "test_a_try_for_several_does_not_take_what_is_there_for_a_waiter",
    "test_drain_while_the_store_is_away_ends",
    "test_leaders_can_be_observed",
}


NEVER_RESTARTED = {"restart", "step_clock"}
ABSENT = {
    "test_memory": {"shared", "restart", "age"},
    "test_memory_far_away": {"shared", "restart", "age", "wipe", "step_clock"},
    "test_sqlite": {"restart"},
    "test_sqlite_without_push": {"push", "restart", "age", "wipe", "step_clock"},
    "test_mongodb": {"joint", "step_clock"},
    "test_redis_cluster": {"joint"} | NEVER_RESTARTED,
    "test_zookeeper_model": {"shared"} | NEVER_RESTARTED,
    "test_redlock": {"push", "fair", "semaphore", "rwlock", "heir", "note", "joint"} | NEVER_RESTARTED,
}
"""What the store of a module has not, or the module does not do to it. Modules that are not here: NEVER_RESTARTED."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of what its store has not is not collected: such a test would be skipped, and skips hide what matters.

    On the embedded stores some are left out of ``make quick``; ``make test`` has them on every store."""
    items[:] = [item for item in items if not _of_what_is_absent(item)]
    for item in items:
        if getattr(item, "originalname", "") in SEVERAL_SECONDS and not item.get_closest_marker("server"):
            item.add_marker(pytest.mark.slow)


def _of_what_is_absent(item: pytest.Item) -> bool:
    if item.path.parent != HERE:
        return False
    if item.path.stem == "test_mysql_pool" and "threads" in getattr(item, "fixturenames", ()):
        return True  # a pool of aiomysql's is for asyncio
    needs = getattr(getattr(item, "function", None), "needs", ())
    return bool(ABSENT.get(item.path.stem, NEVER_RESTARTED).intersection(needs))
