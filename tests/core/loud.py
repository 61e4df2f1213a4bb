"""Blocks of every kind of lock, for the tests of loud loss, and how they lose their lease: an operator breaks it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import leasehold
from leasehold.testing.handles import eventually

KINDS: dict[str, Callable[..., Any]] = {
    "lock": lambda locks, **options: locks.lock("a", **options),
    "rlock": lambda locks, **options: locks.rlock("a", **options),
    "semaphore": lambda locks, **options: locks.semaphore("a", limit=2, **options),
    "read": lambda locks, **options: locks.rwlock("a", **options).read(),
    "write": lambda locks, **options: locks.rwlock("a").write(**options),
    "all_of": lambda locks, **options: locks.all_of("a", "b", **options),
}
"""A lock of each kind, given a ``Locks`` and options. A break of "a" ends its lease."""
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)


def broken(url: str, name: str = "a") -> None:
    """Have an operator break the lease. Its holder hears of it soon."""
    with leasehold.connect(url) as operator:
        assert operator.break_lease(name)


def lose(url: str, lease: leasehold.Lease, name: str = "a") -> None:
    """Break the lease of a thread, and wait until it is lost."""
    broken(url, name)
    assert lease.lost.wait(30)


def lost_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines about a loss, at least one."""

    def found() -> list[str]:
        records: list[logging.LogRecord] = list(caplog.records)
        return [each.getMessage() for each in records if getattr(each, "lease_event", None) == "lost"]

    lines: list[str] = eventually(found)
    return lines


async def for_ever() -> None:
    """What a body does that only a cancellation ends."""
    async with asyncio.timeout(30):
        await asyncio.Event().wait()


def marks() -> int:
    """How many cancellations of this task nobody has taken back."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()
