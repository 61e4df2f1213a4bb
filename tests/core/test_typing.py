"""Type hints of everything public can be read at run time, and records are tuples that pydantic knows."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing
from collections.abc import Iterator
from datetime import UTC, datetime
from types import FunctionType, ModuleType
from typing import Any

import pydantic
import pytest

import leasehold
from leasehold import LeaseInfo, admin, aio, fence
from leasehold.fence import mongo, redis, sql
from leasehold.kinds.joint import tasks as joint_tasks
from leasehold.kinds.joint import threads as joint_threads

MODULES = [leasehold, aio, admin, fence, mongo, redis, sql]


def is_ours(found: object) -> bool:
    return str(getattr(found, "__module__", "")).startswith("leasehold")


def names_of(module: ModuleType) -> list[str]:
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return getattr(module, "__all__", None) or [name for name in defined if name[0] != "_"]


def functions_of(kind: type) -> Iterator[tuple[str, FunctionType]]:
    """What can be called or read of the class's instances, inherited from classes of ours or defined there."""
    for base in kind.__mro__:
        for name, member in vars(base).items() if is_ours(base) else ():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if isinstance(function, FunctionType) and (name[0] != "_" or name[:2] == "__"):
                yield name, function


def classes_in(hint: Any) -> Iterator[type]:
    """The classes of ours that a hint names."""
    if isinstance(hint, type) and is_ours(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from classes_in(part)


def hints_of(found: Any) -> dict[str, Any]:
    return typing.get_type_hints(found, include_extras=True)


def given_by(found: Any) -> list[type]:
    """The classes of what a function returns, or of the attributes of a class. Empty if a hint cannot be read."""
    try:
        hints = hints_of(found)
    except NameError:
        return []  # the test of this very function or class says so
    given = hints.items() if isinstance(found, type) else [("return", hints.get("return"))]
    return [kind for name, hint in given if name[0] != "_" for kind in classes_in(hint)]


def everything_public() -> dict[str, Any]:
    """Functions, classes, and the functions of classes; then the same of all classes that these return."""
    found: dict[str, Any] = {}
    queue = [getattr(module, name) for module in MODULES for name in names_of(module)]
    queue += [joint_threads.AllLease, joint_tasks.AllLease]  # what an AllOf gives
    while queue:
        each = queue.pop()
        if not isinstance(each, (type, FunctionType)) or f"{each.__module__}.{each.__qualname__}" in found:
            continue
        found[f"{each.__module__}.{each.__qualname__}"] = each
        queue += given_by(each)
        if isinstance(each, type):
            for name, function in functions_of(each):
                found[f"{each.__module__}.{each.__qualname__}:{name}"] = function
                queue += given_by(function)
    return found


PUBLIC = everything_public()


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_type_hints_can_be_read_at_run_time(name: str) -> None:
    hints = hints_of(PUBLIC[name])
    if isinstance(PUBLIC[name], FunctionType):
        annotated = {*inspect.get_annotations(inspect.unwrap(PUBLIC[name]))}
        assert set(hints) == annotated


def test_type_hints_of_both_worlds_are_covered() -> None:
    """What is reached only through what a method returns is there too."""
    kinds = ("election.{}.Election", "election.{}.Term", "group.{}.Group", "joint.{}.AllOf", "once.{}.Once")
    for side in ("threads", "tasks"):
        for kind in (*kinds, "rwlock.{}.RWLock", "joint.{}.AllLease"):
            assert f"leasehold.kinds.{kind.format(side)}" in PUBLIC
        assert f"leasehold.{side}.lease.Lease:renew" in PUBLIC
        assert f"leasehold.{side}.locks.connect" in PUBLIC
    for name in ("kinds.once.outcome.Outcome", "kinds.group.membership.Roster", "stores.common.findings.Finding"):
        assert f"leasehold.{name}" in PUBLIC
    assert "leasehold.core.lease.BaseLease:__init__" in PUBLIC


def test_type_hints_name_the_exported_classes() -> None:
    for world in (leasehold, aio):
        assert hints_of(world.connect)["return"] is world.Locks
        for lock in (world.Locks.lock, world.Locks.semaphore, world.RWLock.read, world.RWLock.write):
            returned = [hints_of(overload)["return"] for overload in typing.get_overloads(lock)]
            assert returned == [world.Lock, world.SkippingLock]
        rlock = [hints_of(overload)["return"] for overload in typing.get_overloads(world.Locks.rlock)]
        assert rlock == [world.RLock, world.SkippingLock]
        assert hints_of(world.Locks.election)["return"] is world.Election
        assert hints_of(world.Locks.group)["return"] is world.Group
        assert hints_of(world.Locks.rwlock)["return"] is world.RWLock
        assert hints_of(world.Locks.once)["return"] is world.Once
        all_of = [hints_of(overload)["return"] for overload in typing.get_overloads(world.Locks.all_of)]
        assert all_of == [world.AllOf, world.SkippingLock]
    assert hints_of(LeaseInfo)["acquired"] is datetime


@pytest.fixture
def info() -> LeaseInfo:
    with leasehold.connect("memory://typing", owner="me") as locks, locks.lock("job", data={"by": "nightly"}):
        (found,) = locks.leases()
    return found


def test_lease_info_is_a_response_model(info: LeaseInfo) -> None:
    """FastAPI does with ``list[LeaseInfo]`` what pydantic's TypeAdapter does."""
    model = pydantic.TypeAdapter(list[LeaseInfo])
    assert model.validate_python([info]) == [info]
    assert model.validate_json(model.dump_json([info])) == [info]
    assert model.json_schema()["type"] == "array"
    with pytest.raises(pydantic.ValidationError):
        model.validate_python([info._replace(acquired="yesterday")])  # type: ignore[arg-type]


@pytest.mark.parametrize("record", [leasehold.Outcome, leasehold.LockMetrics, leasehold.Event, leasehold.Member])
def test_every_record_has_a_json_schema(record: type) -> None:
    assert pydantic.TypeAdapter(record).json_schema()


def test_lease_info_is_a_tuple_with_names(info: LeaseInfo) -> None:
    name, kind, owner, token, data, acquired, expires, waiters = info
    assert (name, kind, owner, data, waiters) == ("job", "lock", "me", {"by": "nightly"}, 0)
    assert info == LeaseInfo(name, kind, owner, token, data, acquired, expires, waiters=waiters)
    assert info._asdict()["token"] == info.token == token
    assert info._replace(owner="you") == (name, kind, "you", token, data, acquired, expires, waiters)
    for copied in (copy.copy(info), copy.deepcopy(info), pickle.loads(pickle.dumps(info))):
        assert copied == info
        assert type(copied) is LeaseInfo
    with pytest.raises(AttributeError):
        info.owner = "you"  # type: ignore[misc]
    with pytest.raises(TypeError):
        LeaseInfo("job", "lock", "me")  # type: ignore[call-arg]


def test_repr_of_lease_info_names_its_fields() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    shown = repr(LeaseInfo("job", "lock", "me", 7, None, moment, moment, None))
    assert shown.startswith("LeaseInfo(name='job', kind='lock', owner='me', token=7, data=None, acquired=datetime.")
    assert shown.endswith(", waiters=None)")
