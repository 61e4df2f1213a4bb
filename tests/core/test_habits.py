"""Names that people know from other libraries: the error says what to use here, for threads and asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import leasehold
from leasehold import aio
from leasehold.contract import habits

WORLDS = [leasehold, aio]


async def done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


@pytest.fixture(params=WORLDS)
async def locks(request: pytest.FixtureRequest) -> Any:
    locks = request.param.connect("memory://habits")
    yield locks
    await done(locks.close())


def test_release_and_extend_of_a_lock_say_that_a_lease_has_them(locks: Any) -> None:
    for lock in (locks.lock("x"), locks.rlock("x"), locks.semaphore("x", limit=2), locks.all_of("x", "y")):
        with pytest.raises(
            AttributeError, match=r"has no attribute 'release': release the lease: .*lease\.release\(\)"
        ):
            lock.release()
        with pytest.raises(AttributeError, match=r"has no attribute 'extend': .* use lease\.renew\(\)"):
            lock.extend(10)
        assert not hasattr(lock, "owned")


@pytest.mark.parametrize("name", sorted(habits.LOCK))
def test_attribute_of_other_locks_is_explained(locks: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=f"'Lock' object has no attribute '{name}': "):
        getattr(locks.lock("x"), name)


@pytest.mark.parametrize("name", sorted(habits.LEASE))
async def test_attribute_of_other_leases_is_explained(locks: Any, name: str) -> None:
    lease = await done(locks.lock("x").acquire())
    with pytest.raises(AttributeError, match=f"'Lease' object has no attribute '{name}': "):
        getattr(lease, name)


@pytest.mark.parametrize("name", sorted(habits.LOCKS))
def test_method_of_other_clients_is_explained(locks: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=f"'Locks' object has no attribute '{name}': "):
        getattr(locks, name)


@pytest.mark.parametrize("name", sorted(habits.RWLOCK))
def test_attribute_of_other_read_write_locks_is_explained(locks: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=f"'RWLock' object has no attribute '{name}': "):
        getattr(locks.rwlock("x"), name)


async def test_other_missing_attribute_is_python_s_own_error(locks: Any) -> None:
    lease = await done(locks.lock("x").acquire())
    both = await done(locks.all_of("y", "z").acquire())
    for found in (locks, locks.lock("x"), lease, locks.rwlock("x")):
        with pytest.raises(AttributeError, match=r"^'\w+' object has no attribute 'nothing'$") as caught:
            _ = found.nothing
        assert (caught.value.name, caught.value.obj) == ("nothing", found)
    with pytest.raises(AttributeError, match=r"use lease\.tokens\[name\]"):  # which the property itself raises
        _ = both.token


@pytest.mark.parametrize("option", sorted(habits.OPTIONS))
def test_option_of_other_libraries_is_explained(locks: Any, option: str) -> None:
    lock = locks.lock("x")
    calls = {
        "lock": lambda **options: locks.lock("x", **options),
        "acquire": lock.acquire,
        "try_acquire": lock.try_acquire,
        "rlock": lambda **options: locks.rlock("x", **options),
        "semaphore": lambda **options: locks.semaphore("x", limit=2, **options),
        "all_of": lambda **options: locks.all_of("x", **options),
        "once": lambda **options: locks.once("x", **options),
        "connect": lambda **options: leasehold.connect("memory://", **options),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=rf"^{name}\(\) has no option '{option}': ") as caught:
            call(**{option: 1})
        assert str(caught.value).endswith(habits.OPTIONS[option])


def test_misspelt_option_suggests_the_nearest(locks: Any) -> None:
    calls = (lambda **options: locks.lock("x", **options), lambda **options: locks.rlock("x", **options))
    for call in (*calls, lambda **options: aio.connect("memory://", **options)):
        with pytest.raises(TypeError, match=r"has no option 'tll': did you mean ttl\?"):
            call(tll=3)
    with pytest.raises(TypeError, match=r"^acquire\(\) has no option 'tmeout': did you mean timeout\?"):
        locks.lock("x").acquire(tmeout=3)


def test_every_advice_names_what_there_is() -> None:
    """An option that an advice names is one of ``lock``, ``connect`` or ``semaphore``."""
    known = {"limit", "wait"}
    for function in (leasehold.Locks.lock, leasehold.connect):
        known |= {*inspect.signature(function).parameters}
    for advice in habits.OPTIONS.values():
        for word in words_with_equals(advice):
            assert word in known, advice


def words_with_equals(text: str) -> Iterator[str]:
    for word in text.replace("(", " ").split():
        if "=" in word:
            yield word.partition("=")[0]


async def test_bool_and_minus_one_as_a_timeout_are_explained(locks: Any) -> None:
    for call in (locks.lock("x").acquire, locks.lock("x").try_acquire):
        with pytest.raises(TypeError, match=r"to try without waiting, use try_acquire\(\)"):
            await done(call(False))
        with pytest.raises(ValueError, match="to wait as long as it takes, leave it out"):
            await done(call(-1))


async def test_with_on_what_belongs_to_tasks_says_async_with() -> None:
    async with aio.connect("memory://habits") as locks:
        lease = await locks.lock("x").acquire()
        taking = locks.lock("y").acquire()
        for wrong in (locks, locks.lock("x"), lease, taking):
            with pytest.raises(TypeError, match=r"of leasehold\.aio is for tasks: use `async with`"):
                with wrong:  # type: ignore[attr-defined]
                    pass
        with pytest.raises(AttributeError, match="has no attribute 'token': await it first"):
            _ = taking.token  # type: ignore[attr-defined]
        taking.close()


async def test_async_with_on_what_belongs_to_threads_says_with() -> None:
    with leasehold.connect("memory://habits") as locks, locks.lock("x") as lease:
        for wrong in (locks, locks.lock("y"), lease):
            with pytest.raises(TypeError, match=r"of leasehold is for threads: use `with`"):
                async with wrong:  # type: ignore[attr-defined]
                    pass
