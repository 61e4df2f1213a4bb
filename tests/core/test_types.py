"""What a type checker knows of what users write: an attribute that is promised is also one that it finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# How long it takes says nothing about what it finds.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

THREADS = """
import leasehold

def work(locks: leasehold.Locks) -> dict[str, int]:
    with locks.all_of("a", "b") as lease:
        lease.check()
        found = lease.tokens
    with locks.all_of("a", "b").acquire(timeout=5) as lease:
        found = lease.tokens
    tried = locks.all_of("a", "b").try_acquire()
    if tried is not None:
        found = tried.tokens
    with locks.lock("a") as plain:
        token: int = plain.token
        held: leasehold.Lease = plain
    with locks.rlock("a") as entry, locks.rwlock("b").write() as writer, locks.semaphore("c", limit=2) as permit:
        token = entry.token + writer.downgrade().token + permit.token
    roster = locks.group("g").members()
    member = roster.owner_of("key")
    counted: int = locks.counters().renewals
    last: leasehold.Member | None = member
    return found if member is None or member.owner else {}

def lead(term: leasehold.Term) -> int:
    return leasehold.fence.token(term.lease)

def once(locks: leasehold.Locks) -> leasehold.Outcome | None:
    try:
        return locks.once("x").run(lambda: 5).check()
    except leasehold.OnceFailed as error:
        return error.outcome
    except (leasehold.TooManyOutcomes, leasehold.fence.StaleToken):
        return None

async def other() -> None:
    async with leasehold.aio.connect() as locks:
        found = locks.counters()
        print(found.unavailable)
        tasks: leasehold.aio.Locks = locks
"""

TASKS = """
import asyncio
from leasehold import aio

async def work(locks: aio.Locks) -> dict[str, int]:
    async with locks.all_of("a", "b") as lease:
        lease.check()
        found = lease.tokens
    async with locks.all_of("a", "b").acquire(timeout=5) as lease:
        found = lease.tokens
    lease = await asyncio.wait_for(locks.all_of("a", "b").acquire(), 5)
    tried = await locks.all_of("a", "b").try_acquire()
    if tried is not None:
        found = tried.tokens
    async with locks.lock("a") as plain, locks.accept("text") as heir:
        token: int = plain.token + heir.token
        held: aio.Lease = plain
    async with locks.rlock("a") as entry, locks.rwlock("b").write() as writer:
        token = entry.token + (await writer.downgrade()).token
    task: asyncio.Task[aio.Lease] = asyncio.create_task(locks.lock("a").acquire())
    task.cancel()
    return found

async def lead(term: aio.Term) -> None:
    await term.stopping.wait()

async def once(locks: aio.Locks) -> aio.Outcome | None:
    try:
        return (await locks.once("x").run(lambda: 5)).check()
    except aio.OnceFailed as error:
        return error.outcome
    except aio.TooManyOutcomes:
        return None

async def member(locks: aio.Locks) -> aio.Member | None:
    async for info in locks.leases():
        print(info.name)
    return await locks.group("g").owner_of("x")
"""


WRONG = "import leasehold\nleasehold.nothing\nleasehold.aio.nothing\n"


def test_type_checker_finds_what_is_there_and_nothing_else(tmp_path: Path) -> None:
    """In one run, and in a process of its own: a type checker leaves a million objects, with which every collection of
    garbage would stop later tests for seconds."""
    for name, text in (("threads", THREADS), ("tasks", TASKS), ("wrong", WRONG)):
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "."]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 1
    errors = [line for line in said.splitlines() if ": error:" in line]
    assert len(errors) == 2, said
    assert all(line.startswith("wrong.py:") and 'Module has no attribute "nothing"' in line for line in errors), said
