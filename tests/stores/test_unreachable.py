"""A store that cannot be reached: one error, its cause, how often and how long it was tried, and a log line."""

from __future__ import annotations

import logging
import socket
import sqlite3
import time
import traceback
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import leasehold
from leasehold import aio

URLS = {
    "redis": "redis://127.0.0.1:{0}/0",
    "sentinel": "redis+sentinel://127.0.0.1:{0}/main",
    "cluster": "redis+cluster://127.0.0.1:{0}",
    "redlock": "redlock://127.0.0.1:{0},localhost:{0},127.0.0.2:{0}",
    "postgresql": "postgresql://user:secret@127.0.0.1:{0}/db",
    "mysql": "mysql://user:secret@127.0.0.1:{0}/db",
    "mongodb": "mongodb://127.0.0.1:{0}/db",
    "etcd": "etcd://127.0.0.1:{0}",
    "zookeeper": "zookeeper://127.0.0.1:{0}",
}


@pytest.fixture(params=["refuses", pytest.param("silent", marks=pytest.mark.slow)])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A port at which nobody listens, or at which nobody ever answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if request.param == "silent":
            server.listen(100)
        yield server.getsockname()[1]


def chain(error: BaseException) -> list[BaseException]:
    """The errors that a traceback shows."""
    shown = [error]
    while (last := shown[-1]).__cause__ or (last.__context__ and not last.__suppress_context__):
        shown.append(last.__cause__ or last.__context__)  # type: ignore[arg-type]
    return shown


def check(error: leasehold.StoreUnavailable, caplog: pytest.LogCaptureFixture) -> None:
    shown = chain(error)
    assert str(error).startswith("cannot acquire 'x', tried "), error
    assert "secret" not in str(error)
    assert len(shown) <= 3, "the driver's error, and what it names as its cause"
    assert all(error.__cause__ is cause for error, cause in pairwise(shown)), "not what it met on its way"
    assert not any(isinstance(each, leasehold.LeaseholdError) for each in shown[1:])
    assert len("".join(traceback.format_exception(error)).splitlines()) < 60
    told = [each for each in caplog.records if getattr(each, "lease_event", None) == "unavailable"]
    assert len(told) == 1
    assert ("; retrying for up to " in told[0].getMessage()) == ("tried once" not in str(error))


TIMEOUT = 0.7
LONGEST = TIMEOUT + 3
"""Two calls may each take half a second longer than the timeout allows; PostgreSQL's driver counts in whole seconds."""


@pytest.mark.parametrize("name", URLS)
def test_unreachable_store_gives_one_clear_error(name: str, port: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    with leasehold.connect(URLS[name].format(port)) as locks:
        began = time.monotonic()
        with pytest.raises(leasehold.StoreUnavailable) as caught:
            locks.lock("x").acquire(timeout=TIMEOUT)
        assert time.monotonic() - began < LONGEST
        check(caught.value, caplog)


@pytest.mark.parametrize("name", URLS)
async def test_unreachable_store_gives_a_task_one_clear_error(
    name: str, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    async with aio.connect(URLS[name].format(port)) as locks:
        with pytest.raises(leasehold.StoreUnavailable) as caught:
            await locks.lock("x").acquire(timeout=TIMEOUT)
        check(caught.value, caplog)


def test_client_that_cannot_connect_gives_one_clear_error(caplog: pytest.LogCaptureFixture) -> None:
    """Its pool raises an IndexError first, since it is empty."""
    redis = pytest.importorskip("redis")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        never = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        client = redis.Redis(port=server.getsockname()[1], host="127.0.0.1", retry=never)
        with leasehold.connect(client) as locks, pytest.raises(leasehold.StoreUnavailable) as caught:
            locks.lock("x").acquire(timeout=TIMEOUT)
    check(caught.value, caplog)
    assert isinstance(caught.value.__cause__, redis.ConnectionError)


def test_locked_file_gives_one_clear_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "leases.db"
    with leasehold.connect(f"sqlite:///{path}") as locks:
        locks.lock("x").acquire().release()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(leasehold.StoreUnavailable) as caught:
            locks.lock("x").acquire(timeout=TIMEOUT)
        other.close()
    check(caught.value, caplog)


def test_refused_call_is_not_told_as_retried(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        with leasehold.connect(URLS["redis"].format(server.getsockname()[1])) as locks:
            with pytest.raises(leasehold.StoreUnavailable, match="tried once"):
                locks.lock("x").try_acquire()
    assert "retrying" not in caplog.records[0].getMessage()
