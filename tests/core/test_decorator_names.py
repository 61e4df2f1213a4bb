"""Names of decorated calls: a template over the arguments, or a function that is given them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

import leasehold
from leasehold import aio


@dataclass
class User:
    id: int
    address: dict[str, Any]


class Plain:
    """Its text is its address."""


SIDES = pytest.mark.parametrize("side", ["threads", "asyncio"])
NAMES = {
    "lock": lambda locks, name, **options: locks.lock(name, **options),
    "rlock": lambda locks, name, **options: locks.rlock(name, **options),
    "semaphore": lambda locks, name, **options: locks.semaphore(name, limit=2, **options),
    "read": lambda locks, name, **options: locks.rwlock(name).read(**options),
    "write": lambda locks, name, **options: locks.rwlock(name).write(**options),
    "all_of": lambda locks, name, **options: locks.all_of(name, **options),
}
KINDS = pytest.mark.parametrize("kind", NAMES)


def held() -> str:
    return leasehold.current().name


def name_of_a_call(function: Any, lock: Callable[[Any], Any], side: str, *args: Any, **kwargs: Any) -> str:
    """The name under which a call of the function runs. ``lock`` makes the lock, given a ``Locks``."""
    if side == "threads":
        with leasehold.connect("memory://") as locks:

            @functools.wraps(function)
            def work(*args: Any, **kwargs: Any) -> str:
                return held()

            return str(lock(locks)(work)(*args, **kwargs))

    async def run() -> str:
        async with aio.connect("memory://") as locks:

            @functools.wraps(function)
            async def work(*args: Any, **kwargs: Any) -> str:
                return held()

            return str(await lock(locks)(work)(*args, **kwargs))

    return asyncio.run(run())


def sync(customer: object, region: object = "eu", *rest: object, user: object = None, **more: object) -> None: ...


@SIDES
@KINDS
def test_every_kind_of_lock_takes_its_name_from_the_arguments(side: str, kind: str) -> None:
    lock = NAMES[kind]
    assert name_of_a_call(sync, lambda locks: lock(locks, "customer:{customer}"), side, 7) == "customer:7"
    assert name_of_a_call(sync, lambda locks: lock(locks, "customer"), side, 7) == "customer"

    def name(customer: object, *rest: object) -> str:
        return f"by {customer} of {rest}"

    assert name_of_a_call(sync, lambda locks: lock(locks, name), side, 7, "us") == "by 7 of ('us',)"


@pytest.mark.parametrize(
    ("template", "args", "kwargs", "name"),
    [
        ("{customer}", (7,), {}, "7"),
        ("{customer}-{region}", (7,), {}, "7-eu"),
        ("{customer}-{region}", (), {"region": "us", "customer": 7}, "7-us"),
        ("{rest[1]}", (7, "eu", "a", "b"), {}, "b"),
        ("{more[tag]}", (7,), {"tag": "x"}, "x"),
        ("{user.id}", (7,), {"user": User(3, {})}, "3"),
        ("{user.address[city]}", (7,), {"user": User(3, {"city": "Bern"})}, "Bern"),
        ("{customer[0]}", ([5, 6],), {}, "5"),
        ("{customer:%Y-%m}", (date(2026, 11, 19),), {}, "2026-11"),
        ("{customer:>04}", (7,), {}, "0007"),
        ("{customer!r}", ("7",), {}, "'7'"),
        ("{{{customer}}}", (7,), {}, "{7}"),
        ("{{customer}}", (7,), {}, "{customer}"),
        ("{customer}", ("{region}",), {}, "{region}"),
        ("{customer}:{customer}", ("ü",), {}, "ü:ü"),
        ("{customer}", ("<it is at 0x7f>",), {}, "<it is at 0x7f>"),
        ("{user}", (7,), {}, "None"),
    ],
)
def test_template_is_filled_as_the_call_binds_its_arguments(
    template: str, args: tuple[object, ...], kwargs: dict[str, object], name: str
) -> None:
    assert name_of_a_call(sync, lambda locks: locks.lock(template), "threads", *args, **kwargs) == name


@SIDES
@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{custmer}", "no argument 'custmer'; its arguments: customer, region, rest,"),
        ("{tag}", "no argument 'tag'"),  # it may come in **more: {more[tag]}
        ("{0}", r"\{0\} is not the name of an argument"),
        ("{}", r"\{\} is not the name of an argument"),
        ("{customer.0}", "not the name of an argument"),
        ("{customer[}", "not the name of an argument|expected"),
        ("{customer.__class__}", "private attribute"),
        ("{customer.address._secret}", "private attribute"),
        ("{customer[0].__init__.__globals__}", "private attribute"),
        ("{customer:{region}}", "contains another field"),
        ("{customer!x}", "unknown conversion !x"),
        ("{customer", "literal brace"),
        ("customer}", "literal brace"),
    ],
)
def test_template_that_does_not_fit_is_refused_when_decorated(side: str, template: str, message: str) -> None:
    async def of_a_task(customer: object, region: object = "eu", *rest: object, **more: object) -> None: ...

    world, function = (leasehold, sync) if side == "threads" else (aio, of_a_task)
    lock = world.connect("memory://").lock(template)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=message):
        lock(function)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a\nb", r"{customer} in the name 'customer:{customer}' contains a control character"),
        ("x" * 600, r"{customer} in the name .* not 600"),
        ("x" * 510, r"the name that 'customer:{customer}' gives must have 1 to 512 characters, not 519"),
        ("\udc00", r"{customer} in the name .* lone surrogate"),
        (Plain(), r"{customer} in the name .* a Plain has no text of its own"),
        ([Plain()], r"{customer} in the name .* a list has no text of its own"),
        (User(1, {"": Plain()}), r"{customer} in the name .* a User has no text of its own"),
        (held, r"{customer} in the name .* held is not called by a template; call it"),
        ("".join, r"{customer} in the name .* str.join is not called by a template; call it"),
    ],
)
def test_name_that_a_call_gives_is_checked_and_the_error_names_the_argument(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        name_of_a_call(sync, lambda locks: locks.lock("customer:{customer}"), "threads", value)


def test_field_that_cannot_be_read_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match=r"{user.id} in the name .* cannot be read in this call of sync: 'NoneType'"):
        name_of_a_call(sync, lambda locks: locks.lock("{user.id}"), "threads", 7)


@SIDES
def test_call_with_wrong_arguments_names_the_function_and_runs_nothing(side: str) -> None:
    with pytest.raises(TypeError, match=r"sync\(\): missing a required argument: 'customer'"):
        name_of_a_call(sync, lambda locks: locks.lock("{customer}"), side)


def test_function_that_makes_no_name_is_an_error() -> None:
    for lock, error in ((lambda customer: 5, TypeError), (lambda customer: "", ValueError)):
        with pytest.raises(error, match=r"the name that .*lambda.* returned must"):
            name_of_a_call(sync, lambda locks: locks.lock(lock), "threads", 7)  # noqa: B023


def test_methods_bind_self() -> None:
    class Account:
        def __init__(self, number: int) -> None:
            self.number = number

        @leasehold.connect("memory://").lock("account:{self.number}")
        def close(self, fast: bool = False) -> str:
            return held()

    assert Account(3).close(fast=True) == "account:3"


def test_two_names_of_one_call_are_taken_in_one_order_and_must_differ() -> None:
    with leasehold.connect("memory://") as locks:

        @locks.all_of("account:{source}", "account:{target}", "ledger")
        def transfer(source: int, target: int) -> str:
            return held()

        assert transfer(2, 1) == transfer(1, 2) == "account:1, account:2, ledger"
        with pytest.raises(ValueError, match="same name twice: 'account:1'"):
            transfer(1, 1)


def test_calls_with_other_arguments_do_not_wait_for_each_other() -> None:
    with leasehold.connect("memory://") as locks:

        @locks.lock("customer:{customer}", timeout=0)
        def sync(customer: int, inner: int | None = None) -> str:
            return held() if inner is None else sync(inner)

        assert sync(1, inner=2) == "customer:2"
        with pytest.raises(leasehold.AcquireTimeout, match="customer:1"):
            sync(1, inner=1)


# Outside of decorators.


def test_names_are_literal_outside_of_decorators() -> None:
    with leasehold.connect("memory://") as locks:
        for name in ("customer:{customer}", "{{", "}", "{0.__class__}"):
            with locks.lock(name) as lease, locks.rlock(f"r{name}"), locks.all_of(f"a{name}", f"b{name}"):
                assert lease.name == name
                assert [info.name for info in locks.leases(name)] == [name]


async def from_arguments(customer: object) -> str:
    return str(customer)


@KINDS
def test_lock_with_a_function_for_its_name_only_decorates(kind: str) -> None:
    with leasehold.connect("memory://") as locks:
        lock = NAMES[kind](locks, lambda customer: "x")
        for use in (lock.acquire, lock.try_acquire, lock.locked, lock.__enter__):
            with pytest.raises(TypeError, match=r"can only decorate functions"):
                use()
        assert list(locks.leases()) == []

    async def run() -> None:
        async with aio.connect("memory://") as tasks:
            lock = NAMES[kind](tasks, lambda customer: "x")
            uses: list[Callable[[], Awaitable[object]]] = [
                lock.acquire,
                lock.try_acquire,
                lock.locked,
                lock.__aenter__,
            ]
            for use in uses:
                with pytest.raises(TypeError, match="can only decorate functions"):
                    await use()

    asyncio.run(run())


@pytest.fixture
def locks() -> Iterator[leasehold.Locks]:
    with leasehold.connect("memory://") as locks:
        yield locks


def test_function_for_a_name_is_refused_where_nothing_is_decorated(locks: leasehold.Locks) -> None:
    def name(customer: object) -> str:
        return "x"

    for make in (locks.once, locks.election, locks.group, locks.inspect, locks.break_lease):
        with pytest.raises(TypeError, match="must be a str"):
            make(name)  # type: ignore[operator]
    with pytest.raises(TypeError, match="the function for a lock's name must not be async"):
        locks.lock(from_arguments)  # type: ignore[call-overload]
