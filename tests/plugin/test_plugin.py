"""The fixture ``leases``, as users' tests use it: in a pytest run of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "testing" / "test_worker.py"


def run(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(test)
    plugins = ["-p", "leasehold.pytest_plugin", "-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto", "-W", "error"]
    fixture_scope = ["-o", "asyncio_default_fixture_loop_scope=function"]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *fixture_scope, "test_it.py"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
    )


def passes(folder: Path, test: str) -> None:
    ran = run(folder, test)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_plugin_is_an_entry_point_of_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"leasehold": "leasehold.pytest_plugin"}


def test_plugin_imports_nothing_before_the_fixture_is_used() -> None:
    code = "import sys, leasehold.pytest_plugin; print([m for m in sys.modules if m.startswith('leasehold.')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "leasehold.testing" not in ran.stdout
    assert "leasehold.stores" not in ran.stdout


def test_examples_of_the_page_on_testing_pass(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    tests = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(tests) == 4
    passes(tmp_path, "\n".join(tests))


def test_example_of_a_tested_worker_passes(tmp_path: Path) -> None:
    passes(tmp_path, EXAMPLE.read_text())


THREADS = """
import threading, time, pytest, leasehold
from leasehold import LeaseLost, StoreUnavailable
from leasehold.testing.history import check as judge

def test_renewal_goes_on_while_time_passes(leases):
    with leasehold.connect(ttl=30) as locks:
        with locks.lock("a") as lease:
            leases.advance("1h")
            assert lease.valid
            assert locks.lock("a").locked()
    leases.check()

def test_time_passes_at_once_also_when_nothing_is_held(leases):
    with leasehold.connect(ttl=30) as closed:
        closed.lock("a").acquire().release()
    with leasehold.connect(ttl=30) as locks:
        locks.lock("a").acquire().release()
        leases.advance(3600)
        with leases.partition(), pytest.raises(StoreUnavailable):
            locks.lock("a").acquire(timeout=1)
        with locks.lock("a") as lease:
            leases.advance(3600)
            assert lease.valid

def test_a_partition_ends_in_loss(leases):
    with leasehold.connect(ttl=30) as locks:
        lease = locks.lock("a").acquire()
        with leases.partition():
            leases.advance(20)
            assert lease.valid
            with pytest.raises(StoreUnavailable):
                locks.lock("b").try_acquire()
            leases.advance(20)
            assert not lease.valid
            assert lease.lost.wait(60)
        with locks.lock("a").acquire(timeout=60) as other:
            assert other.token > lease.token
    leases.check()

def test_a_pause_ends_in_loss(leases):
    told = threading.Event()
    with leasehold.connect(ttl=30) as locks:
        lease = locks.lock("a", on_lost=lambda lease: told.set()).acquire()
        leases.pause("31s")
        with pytest.raises(LeaseLost):
            lease.check()
        assert told.wait(60)

def test_lost_lease_can_be_taken_by_another(leases):
    locks = leasehold.connect()
    lease = locks.lock("a").acquire()
    lease.lose()
    assert not lease.valid and lease.lost_reason == "the test says so"
    assert lease.lost.is_set()
    with leasehold.connect() as others:
        taken = others.lock("a").try_acquire()
        assert taken is not None and taken.token > lease.token
        lease.lose()  # it has ended: this is nothing to whoever has it now
        assert taken.valid and others.lock("a").try_acquire() is None
    locks.close()
    leases.check()

def test_lease_broken_by_force_is_lost(leases):
    with leasehold.connect(ttl=30) as locks, leasehold.connect() as others:
        lease = locks.lock("a").acquire()
        assert others.break_lease("a", force=True)
        with pytest.raises(LeaseLost):
            lease.renew()
        assert not lease.valid
    assert any((each.op, each.outcome) == ("renew", "refused") for each in leases.history)
    leases.check()

def test_holder_that_trusts_a_lease_after_a_refused_renewal_is_found(leases):
    with leasehold.connect(ttl=30) as locks, leasehold.connect() as others:
        lease = locks.lock("a").acquire()
        assert others.break_lease("a", force=True)
        with pytest.raises(LeaseLost):
            lease.renew()
        while not any((each.op, each.outcome) == ("renew", "refused") for each in leases.history):
            time.sleep(0.01)
        leases.check()
        leases.history.add("check", "a", owner=lease.owner, token=lease.token, outcome="valid")
    unheard = [each for each in leases.history if each.op != "lost" and each.outcome != "invalid"]
    assert {each.rule for each in judge(unheard)} == {"revived"}  # by the refusal alone
    with pytest.raises(AssertionError, match="revived"):
        leases.check()

def test_lost_permit_goes_to_the_waiter(leases):
    with leasehold.connect(ttl=3600) as locks, leasehold.connect() as others:
        lease = locks.semaphore("a", limit=2).acquire()
        kept = locks.semaphore("a", limit=2).acquire()
        got = []
        waiter = threading.Thread(target=lambda: got.append(others.semaphore("a", limit=2).acquire(60)))
        waiter.start()
        while not locks.inspect("a").waiters:
            time.sleep(0.01)
        lease.lose()
        waiter.join(60)
        assert got and got[0].valid and kept.valid
        got[0].release()
    leases.check()

def test_partition_cuts_off_locks_that_are_made_meanwhile(leases):
    with leases.partition():
        with leasehold.connect() as locks:
            with pytest.raises(StoreUnavailable):
                locks.lock("a").try_acquire()
            with leases.partition():
                pass
            with pytest.raises(StoreUnavailable):
                locks.lock("a").try_acquire()
            with leases.partition(locks):
                pass
            with pytest.raises(StoreUnavailable):
                locks.lock("a").try_acquire()
    with leasehold.connect() as locks:
        assert locks.lock("a").try_acquire() is not None

def test_the_store_is_away_for_one_and_another_takes_over(leases):
    with leasehold.connect(ttl=30) as cut, leasehold.connect(ttl=30) as others:
        lease, kept = cut.lock("a").acquire(), others.lock("b").acquire()
        with leases.partition(cut):
            leases.advance(31)
            with others.lock("a").acquire(timeout=60) as other:
                assert not lease.valid and other.valid and kept.valid
            with pytest.raises(StoreUnavailable):
                cut.lock("b").try_acquire()
            with leases.partition(cut):
                pass
            with pytest.raises(StoreUnavailable):
                cut.lock("b").try_acquire()
        assert cut.lock("c").try_acquire() is not None
    leases.check()

def test_one_of_two_is_stopped(leases):
    with leasehold.connect(ttl=30) as stopped, leasehold.connect(ttl=30) as others:
        lease, kept = stopped.lock("a").acquire(), others.lock("b").acquire()
        leases.pause(10, stopped)
        assert lease.valid
        leases.advance(25)
        assert lease.valid  # it was renewed afterwards
        leases.pause(31, stopped)
        assert not lease.valid and kept.valid
        assert lease.lost.wait(60)
        assert others.lock("a").acquire(timeout=60).token > lease.token
    with pytest.raises(ValueError, match="in this test"):
        with leasehold.connect("sqlite:///elsewhere.db") as elsewhere:
            leases.pause(1, elsewhere)
    leases.check()

def test_waiters_and_timeouts_go_by_the_same_clock(leases):
    with leasehold.connect(ttl=30) as locks, leasehold.connect(ttl=30) as others:
        lease = locks.lock("a", renew=False).acquire()
        got = []
        waiter = threading.Thread(target=lambda: got.append(others.lock("a").acquire()))
        waiter.start()
        while not locks.inspect("a").waiters:
            time.sleep(0.01)
        time.sleep(0.1)
        leases.advance(31)
        waiter.join(60)
        assert got and got[0].valid and not lease.valid
        got[0].release()

def test_the_history_is_judged(leases):
    from leasehold.testing.history import Resource
    log = []
    with leasehold.connect() as locks:
        for _ in range(2):
            with locks.lock("a") as lease:
                leases.history.add("write", "a", owner=lease.owner, token=lease.token, outcome="accepted")
                log.append((lease.token, lease.owner))
        leases.check({"a": Resource(2, log)})
        with pytest.raises(AssertionError, match="lost write"):
            leases.check({"a": Resource(0, [])})
        with pytest.raises(AssertionError, match="resource order"):
            leases.check({"a": Resource(2, log[::-1])})

def test_what_the_history_has(leases):
    with leasehold.connect(ttl=30) as locks:
        with locks.lock("a") as lease:
            lease.check()
            lease.renew()
            assert lease.valid
        assert not lease.valid
        lost = locks.lock("a").acquire()
        lost.lose()
        with pytest.raises(LeaseLost):
            lost.check()
        assert not lost.release()
    held = {lease.token: "first", lost.token: "second"}
    assert {each.owner for each in leases.history} == {lease.owner}
    assert [(each.op, each.outcome, held[each.token]) for each in leases.history] == [
        ("acquire", "granted", "first"),
        *[("check", "valid", "first")] * 3,  # the beginning and the end of a block look too, and renew() twice
        ("renew", "renewed", "first"),
        *[("check", "valid", "first")] * 3,
        ("release", "released", "first"),
        ("check", "invalid", "first"),
        ("acquire", "granted", "second"),
        ("lost", "the test says so", "second"),
        ("check", "invalid", "second"),
        ("release", "refused", "second"),
    ]
    leases.check()

def test_two_leases_that_are_valid_at_once_are_found(leases):
    at = leases.clock.now()
    leases.clock.now = lambda: at  # the clock of one stands still
    one = leasehold.connect(ttl=30)
    del leases.clock.now
    with one, leasehold.connect(ttl=30) as other:
        old = one.lock("a").acquire()
        leases.pause(31)
        new = other.lock("a").acquire()
        assert new.valid and old.valid and old.valid and new.valid
        with pytest.raises(AssertionError, match="overlap"):
            leases.check()

def test_semaphores_are_judged_by_their_limit(leases):
    with leasehold.connect() as locks:
        held = [locks.semaphore("s", limit=3).acquire() for _ in range(3)]
        for _ in range(2):
            assert all(lease.valid for lease in held)
        leases.check()
        with pytest.raises(AssertionError, match="overlap"):
            leases.check(limit=2)
        with pytest.raises(AssertionError, match="overlap"):
            leases.check(limit={"s": 2})

def test_readers_and_several_names_are_judged(leases):
    with leasehold.connect() as locks, leasehold.connect(namespace="other") as elsewhere:
        with locks.rwlock("rw").read() as one, locks.rwlock("rw").read() as two:
            assert one.valid and two.valid and one.valid
        with locks.all_of("a", "b", on_lost="log") as both, elsewhere.lock("a") as another:
            assert both.valid and another.valid and both.valid
            both.lose()
            assert not both.valid and both.lost.is_set()
            assert locks.lock("b").try_acquire() is not None
    names = {each.name for each in leases.history}
    assert names == {"rw", "a", "b", "a in test/other"}
    leases.check()

def test_every_test_starts_empty(leases):
    with leasehold.connect() as locks:
        assert locks.lock("a").try_acquire() is not None
"""

ASYNCIO = """
import asyncio, pytest
from leasehold import LeaseLost, aio

async def test_renewal_goes_on_while_time_passes(leases):
    async with aio.connect(ttl=30) as locks:
        async with locks.lock("a") as lease:
            await leases.aadvance("10m")
            assert lease.valid
    leases.check()

async def test_time_passes_at_once_also_when_nothing_is_held(leases):
    async with aio.connect(ttl=30) as closed:
        await (await closed.lock("a").acquire()).release()
    async with aio.connect(ttl=30) as locks:
        await (await locks.lock("a").acquire()).release()
        await leases.aadvance(3600)
        async with locks.lock("a") as lease:
            await leases.aadvance(3600)
            assert lease.valid

async def test_a_body_is_cancelled_in_a_partition(leases):
    async with aio.connect(ttl=30) as locks:
        began = asyncio.Event()
        async def body():
            async with locks.lock("a", on_lost="cancel"):
                began.set()
                await asyncio.sleep(3600)
        task = asyncio.create_task(body())
        await began.wait()
        with leases.partition():
            await leases.aadvance(31)
            with pytest.raises(LeaseLost):
                await asyncio.wait_for(task, 60)

async def test_lost_and_paused_leases_are_told_as_lost(leases):
    async with aio.connect() as locks:
        first, second = await locks.lock("a").acquire(), await locks.lock("b").acquire()
        first.lose()
        assert await asyncio.wait_for(first.lost.wait(), 60)
        assert second.valid
        taken = await locks.lock("a").try_acquire()
        assert taken is not None
        leases.pause(60)
        assert not second.valid
        assert await asyncio.wait_for(second.lost.wait(), 60)
    leases.check()

async def test_one_of_two_is_stopped(leases):
    async with aio.connect(ttl=30) as stopped, aio.connect(ttl=30) as others:
        lease, kept = await stopped.lock("a").acquire(), await others.lock("b").acquire()
        await leases.apause(31, stopped)
        assert not lease.valid and kept.valid
        assert await asyncio.wait_for(lease.lost.wait(), 60)
        with leases.partition(stopped):
            assert (await others.lock("a").acquire(timeout=60)).token > lease.token
        await leases.apause(31)
        assert not kept.valid
    leases.check()
"""


@pytest.mark.parametrize("test", [THREADS, ASYNCIO], ids=["threads", "asyncio"])
def test_fixture_does_to_leases_what_its_page_says(test: str, tmp_path: Path) -> None:
    passes(tmp_path, test)


def test_fixture_fails_a_test_of_bad_code(tmp_path: Path) -> None:
    """A body that never looks whether its lease is lost is caught by the history."""
    test = """
import leasehold
from leasehold.testing.history import Resource

def test_bad(leases):
    with leasehold.connect(ttl=5) as locks:
        old = locks.lock("a").acquire()
        leases.pause(6)
        new = locks.lock("a").acquire()
        log = [(new.token, "new"), (old.token, "old")]
        leases.check({"a": Resource(2, log)})
"""
    ran = run(tmp_path, test)
    assert ran.returncode == 1
    assert "resource order" in ran.stdout
