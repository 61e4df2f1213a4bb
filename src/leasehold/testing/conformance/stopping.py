"""Each kind, cancelled at every await from its beginning to its end: nothing of it is left in the store. Promise 4."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import pytest

from ..scene import Scene
from .cancelling import _free, _nothing, walk
from .fixtures import needs

Life: TypeAlias = Callable[[Any], Coroutine[Any, Any, Any]]


def _walk(tasks: Scene, live: Life, begin: Life | None = None, end: Life | None = None) -> None:
    """Live with a new name each time; it may have to ``begin``, uncancelled, and to ``end``, with what that gave."""
    names: list[str] = []
    begun: list[Any] = []

    async def prepare() -> tuple[Awaitable[Any], Awaitable[Any]]:
        names.append(tasks.name())
        if begin is not None:
            begun.append(await begin(names[-1]))
        return live(names[-1] if begin is None else begun[-1]), _nothing()

    async def after(result: Any) -> None:
        if end is not None:
            await end(begun[-1])
        for name in (names[-1], f"{names[-1]}-2"):
            await _free(tasks, name)

    tasks.loop.run(walk(tasks, prepare, after))


@pytest.mark.slow
def test_several_names_cancelled_at_any_await_are_given_back(tasks: Scene) -> None:
    """Also in the middle of their release, and though somebody has their lease in hand."""
    locks = tasks.connect(ttl=30)
    kept: list[Any] = []

    async def live(name: str) -> bool:
        async with locks.real.all_of(name, f"{name}-2") as lease:
            kept.append(lease)
            await asyncio.sleep(0)
        return True

    _walk(tasks, live)
    assert not any(lease.valid for lease in kept)


@pytest.mark.slow
def test_entries_cancelled_at_any_await_are_left(tasks: Scene) -> None:
    locks = tasks.connect(ttl=30)
    kept: list[Any] = []

    async def live(name: str) -> bool:
        async with locks.real.rlock(name) as outer:
            kept.append(outer)
            async with locks.real.rlock(name) as inner:
                kept.append(inner)
                await asyncio.sleep(0)
        return True

    _walk(tasks, live)
    assert not any(lease.valid for lease in kept)


@needs("note")
@pytest.mark.slow
def test_once_cancelled_at_any_await_leaves_nothing_held(tasks: Scene) -> None:
    """What it has recorded by then stays; what it has not, another does."""
    locks = tasks.connect(ttl=30)
    seen: list[str] = []

    async def work() -> str:
        await asyncio.sleep(0)
        return "worked"

    async def live(name: str) -> Any:
        seen.append(name)
        return await locks.real.once(name).run(work)

    _walk(tasks, live)
    for name in seen:
        outcome = locks.once(name).run(work)
        assert (outcome.ok, outcome.result, outcome.attempts) == (True, "worked", 1)


@pytest.mark.slow
def test_a_candidate_cancelled_at_any_await_stands_no_longer(tasks: Scene) -> None:
    locks = tasks.connect(ttl=30)
    terms: list[Any] = []

    async def lead(term: Any) -> int:
        terms.append(term)
        await asyncio.sleep(0)
        return 7

    async def live(name: str) -> Any:
        assert await locks.real.election(name).run(lead) == 7
        return 7

    _walk(tasks, live)
    assert not any(term.valid or term.lease.valid for term in terms)


@needs("semaphore")
@pytest.mark.slow
def test_a_member_cancelled_at_any_await_of_joining_or_leaving_is_none(tasks: Scene) -> None:
    """One whose joining was cancelled is no member; one whose leaving was is none either."""
    locks = tasks.connect(ttl=30)

    async def join(name: str) -> Any:
        group = locks.real.group(name)
        for number in range(2):
            await group.join(number)
        return group

    async def block(name: str) -> bool:
        async with await locks.real.group(name).join():
            await asyncio.sleep(0)
        return True

    _walk(tasks, lambda group: group.leave(), join)
    _walk(tasks, block)


@needs("rwlock", "heir")
@pytest.mark.slow
def test_a_downgrade_cancelled_at_any_await_leaves_nothing(tasks: Scene) -> None:
    locks = tasks.connect(ttl=30)
    kept: list[Any] = []

    async def write(name: str) -> Any:
        kept.append(await locks.real.rwlock(name).write().acquire())
        return kept[-1]

    async def downgrade(writer: Any) -> bool:
        async with await writer.downgrade() as reader:
            kept.append(reader)
        return True

    async def end(writer: Any) -> None:
        if writer.valid:  # cancelled before it had begun: it is still the writer's
            await writer.release()

    _walk(tasks, downgrade, write, end)
    assert not any(lease.valid for lease in kept)


@needs("heir")
@pytest.mark.slow
def test_an_heir_cancelled_at_any_await_leaves_nothing(tasks: Scene) -> None:
    """Before it has taken it, the lease is still the first holder's to take back; after that it is given back."""
    locks, other = tasks.connect(ttl=30), tasks.connect(ttl=30)

    async def offer(name: str) -> Any:
        lease = await other.real.lock(name).acquire()
        return lease, await lease.transfer()

    async def accept(offered: Any) -> bool:
        async with locks.real.accept(offered[1]):
            pass
        return True

    async def end(offered: Any) -> None:
        await offered[0].release()

    _walk(tasks, accept, offer, end)
