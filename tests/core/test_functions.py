"""Functions that are given to be called: refused at once when a call would not run them, and never taken for done."""

from __future__ import annotations

import asyncio
import functools
import gc
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import leasehold
from leasehold import aio
from leasehold.core import checks
from leasehold.testing.faults import install


async def coroutine(*args: object) -> None:
    raise AssertionError("it is not to run")


def generator(*args: object) -> Iterator[int]:
    yield 1


async def async_generator(*args: object) -> AsyncIterator[int]:
    yield 1


class Hidden:
    """An object that is called as a coroutine function is."""

    async def __call__(self, *args: object) -> None:
        raise AssertionError("it is not to run")

    async def method(self, *args: object) -> None:
        raise AssertionError("it is not to run")


ASYNC = [coroutine, functools.partial(functools.partial(coroutine), 1), Hidden(), Hidden().method]
GENERATORS = [generator, async_generator, functools.partial(generator)]
NEITHER = [5, None, "raise", [], object()]


def plain(*args: object) -> None: ...


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that cannot be seen to give what the other gives."""

    def call(*args: object) -> Any:
        return function(*args)

    return call


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        *((each, checks.COROUTINE) for each in ASYNC),
        (generator, checks.GENERATOR),
        (async_generator, checks.ASYNC_GENERATOR),
        *((each, None) for each in (plain, functools.partial(plain), lambda: 1, print, dict, Hidden, [].append)),
    ],
)
def test_checks_tell_which_functions_defer_their_work(function: object, kind: str | None) -> None:
    assert checks.deferred(function) == kind


# once


@pytest.mark.parametrize("function", [*ASYNC, *GENERATORS, *NEITHER])
def test_once_refuses_what_would_not_run(function: Any) -> None:
    with leasehold.connect(f"memory://{uuid.uuid4().hex}") as locks:
        network = install(locks)
        with pytest.raises(TypeError, match="once"):
            locks.once("x").run(function)
        assert not network.calls, "nothing is asked of the store"
        assert locks.once("x").outcome() is None


@pytest.mark.parametrize("function", [*GENERATORS, *NEITHER])
async def test_once_in_a_task_refuses_what_would_not_run(function: Any) -> None:
    async with aio.connect(f"memory://{uuid.uuid4().hex}") as locks:
        network = install(locks)
        with pytest.raises(TypeError, match="once"):
            await locks.once("x").run(function)
        assert not network.calls, "nothing is asked of the store"
        assert await locks.once("x").outcome() is None


@pytest.mark.parametrize("function", [coroutine, generator, async_generator])
@pytest.mark.parametrize("retry_by", ["any", "same"])
def test_once_does_not_record_what_has_not_run(function: Callable[[], Any], retry_by: str) -> None:
    with leasehold.connect(f"memory://{uuid.uuid4().hex}") as locks:
        once = locks.once("x", retries=2, retry_by=retry_by)
        with pytest.raises(TypeError, match="would never run"):
            once.run(hidden(function))
        gc.collect()  # a coroutine that was not closed would warn
        assert once.outcome() is None
        assert locks.inspect("x") is None
        assert once.run(lambda: 5).result == 5


@pytest.mark.parametrize("function", [generator, async_generator])
@pytest.mark.parametrize("is_async", [True, False])
async def test_once_in_a_task_does_not_record_what_has_not_run(function: Callable[[], Any], is_async: bool) -> None:
    async def in_a_task() -> Any:
        return function()

    async with aio.connect(f"memory://{uuid.uuid4().hex}") as locks:
        once = locks.once("x")
        with pytest.raises(TypeError, match="would never run"):
            await once.run(in_a_task if is_async else hidden(function))
        assert await once.outcome() is None
        assert await locks.inspect("x") is None
        assert (await once.run(lambda: asyncio.sleep(0, 5))).result == 5


# As a decorator


@pytest.mark.parametrize(
    ("function", "says"),
    [
        *((each, r"leasehold\.aio") for each in ASYNC),
        (generator, "generator only creates a generator: acquire inside"),
        (async_generator, "only creates an async generator: acquire inside"),
        *((each, "a lock decorates functions") for each in NEITHER),
        (staticmethod(plain), r"put @locks\.lock\(…\) below @staticmethod"),
        (classmethod(plain), r"put @locks\.lock\(…\) below @classmethod"),
        (int, "a lock decorates functions, not classes: decorate the methods of int"),
    ],
)
def test_lock_does_not_decorate_what_would_run_without_it(function: Any, says: str) -> None:
    with leasehold.connect("memory://functions") as locks, pytest.raises(TypeError, match=says):
        locks.lock("x")(function)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (plain, r"plain is not async: use a lock of leasehold\.connect"),
        (generator, "only creates a generator: acquire inside it, with `async with"),
        (async_generator, "only creates an async generator: acquire inside"),
        *((each, "a lock decorates functions") for each in NEITHER),
        (staticmethod(plain), r"put @locks\.lock\(…\) below @staticmethod"),
        (classmethod(plain), r"put @locks\.lock\(…\) below @classmethod"),
        (int, "a lock decorates functions, not classes: decorate the methods of int"),
    ],
)
async def test_lock_of_tasks_does_not_decorate_what_would_run_without_it(function: Any, says: str) -> None:
    async with aio.connect("memory://functions") as locks:
        with pytest.raises(TypeError, match=says):
            locks.lock("x")(function)


def test_decorated_function_that_turns_out_to_be_async_is_refused() -> None:
    with leasehold.connect("memory://functions") as locks:
        decorated = locks.lock("x")(hidden(coroutine))
        with pytest.raises(TypeError, match=r"leasehold\.aio"):
            decorated()
        gc.collect()
        assert locks.inspect("x") is None
        numbers = locks.lock("x")(lambda: iter([1, 2]))
        assert list(numbers()) == [1, 2], "what was made by a function that has run is its result"


async def test_lock_of_tasks_decorates_an_async_object() -> None:
    class Work:
        async def __call__(self) -> int:
            return aio.current().token

    async with aio.connect("memory://functions") as locks:
        for work in (Work(), functools.partial(Work())):
            assert await locks.lock("x")(work)() > 0  # type: ignore[type-var]


# Callbacks


def places(locks: Any, lease: Any) -> list[Callable[[Any], object]]:
    """Wherever a callback can be given."""
    group = locks.group("g")
    return [
        lambda callback: locks.lock("x", on_lost=callback),
        lambda callback: locks.semaphore("s", limit=2, on_lost=callback),
        lease.on_lost,
        locks.on_event,
        group.on_joined,
        group.on_left,
        group.on_failed,
    ]


def is_kept(give: Callable[[Any], object], wrong: Callable[..., Any]) -> bool:
    """Whether a callback is kept though it was refused: here an object that nobody else has, and is called alike."""
    function = functools.partial(wrong)
    kept = weakref.ref(function)
    try:
        give(function)
    except TypeError:
        pass
    del function
    gc.collect()
    return kept() is not None


@pytest.mark.parametrize("place", range(7))
def test_refused_callbacks_of_threads_are_not_kept(place: int) -> None:
    with leasehold.connect("memory://functions") as locks, locks.lock("held").acquire() as lease:
        give = places(locks, lease)[place]
        for wrong in ASYNC:
            with pytest.raises(TypeError, match=r"on_\w+: .* is async.*leasehold\.aio"):
                give(wrong)
            assert not is_kept(give, wrong)
        for wrong in GENERATORS:
            with pytest.raises(TypeError, match=r"on_\w+: .*would never run"):
                give(wrong)
            assert not is_kept(give, wrong)
        for wrong in (5, [], object()):
            with pytest.raises(TypeError, match=r"on_\w+ must be callable, not"):
                give(wrong)
        give(plain)


@pytest.mark.parametrize("place", range(7))
async def test_refused_callbacks_of_tasks_are_not_kept(place: int) -> None:
    async with aio.connect("memory://functions") as locks, locks.lock("held").acquire() as lease:
        give = places(locks, lease)[place]
        for wrong in GENERATORS:
            with pytest.raises(TypeError, match=r"on_\w+: .*would never run"):
                give(wrong)
            assert not is_kept(give, wrong)
        for wrong in (5, [], object()):
            with pytest.raises(TypeError, match=r"on_\w+ must be callable, not"):
                give(wrong)
        give(plain)
        if place < 2:
            give(coroutine)


@pytest.mark.parametrize("callback", [*ASYNC, *GENERATORS, *NEITHER, hidden(coroutine)])
def test_election_is_not_led_by_what_does_not_run(callback: Any) -> None:
    with leasehold.connect("memory://functions") as locks:
        with pytest.raises(TypeError, match="election"):
            locks.election("e").run(callback)
        gc.collect()
        assert locks.inspect("e") is None


@pytest.mark.parametrize("callback", [*GENERATORS, *NEITHER])
async def test_election_of_tasks_is_not_led_by_what_does_not_run(callback: Any) -> None:
    async with aio.connect("memory://functions") as locks:
        with pytest.raises(TypeError, match="election"):
            await locks.election("e").run(callback)
        assert await locks.inspect("e") is None
