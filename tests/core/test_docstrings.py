"""Every public name has a docstring that names its parameters, and the examples in docstrings run."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import sqlalchemy

import leasehold
from leasehold import admin, aio, fence, pytest_plugin
from leasehold.fence import mongo, redis, sql
from leasehold.testing import history, leases

MODULES: list[ModuleType] = [leasehold, aio, fence, admin, mongo, redis, sql]
TWINS = ["AllOf", "Election", "Group", "Lease", "Lock", "Locks", "Once", "RWLock", "Term", "connect"]
CREATED_BY_USERS = [leasehold.Preset, leasehold.AcquireTimeout, leasehold.LeaseLost, redis.Fence, sql.Fences]
"""Classes of which users may call the constructor: its parameters are named in the docstring of the class."""
THREADS_ONLY = {"cancel"}
"""Parameters that asyncio does not have: there the task is cancelled."""
NOT_RUN = {"schema_sql": "needs a PostgreSQL server", "leasehold.fence.mongo": "needs a MongoDB server"}


def is_ours(found: object) -> bool:
    return str(getattr(found, "__module__", "")).startswith("leasehold")


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of the class, and of its base classes that are ours."""
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name[0] != "_" and isinstance(function, FunctionType) and is_ours(function):
            yield name, member


def everything_public() -> dict[str, Any]:
    found: dict[str, Any] = {"pytest_plugin.leases": inspect.unwrap(pytest_plugin.leases)}
    found |= {f"Leases.{name}": member for name, member in members_of(leases.Leases)}
    found |= {"Leases": leases.Leases, "history.check": history.check, "history.assert_clean": history.assert_clean}
    for module in MODULES:
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        for name in getattr(module, "__all__", own):
            value = getattr(module, name)
            if name[0] == "_" or not isinstance(value, (type, FunctionType)):
                continue
            found[f"{module.__name__}.{name}"] = value
            if isinstance(value, type):
                for member_name, member in members_of(value):
                    found[f"{module.__name__}.{name}.{member_name}"] = member
    return found


PUBLIC = everything_public()


def docstring(found: Any) -> str:
    return inspect.getdoc(found) or ""


def mentions(text: str, parameter: str) -> bool:
    return re.search(rf"^ +{parameter}: |``{parameter}\b", text, re.MULTILINE) is not None


def parameters(found: Any) -> list[inspect.Parameter]:
    signature = inspect.signature(getattr(found, "__func__", found))
    return [each for name, each in signature.parameters.items() if name != "self"]


def with_parameters() -> list[str]:
    return [name for name, each in PUBLIC.items() if not isinstance(each, property) and not isinstance(each, type)]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_a_docstring(name: str) -> None:
    text = docstring(PUBLIC[name])
    assert len(text) > 10
    assert not text.startswith(f"{name.rpartition('.')[2]}(")  # what NamedTuple writes by itself


@pytest.mark.parametrize("name", with_parameters())
def test_docstring_names_every_parameter(name: str) -> None:
    text = docstring(PUBLIC[name])
    assert [each.name for each in parameters(PUBLIC[name]) if not mentions(text, each.name)] == []


@pytest.mark.parametrize("name", with_parameters())
def test_docstring_says_whose_options_are_passed_on(name: str) -> None:
    text = docstring(PUBLIC[name])
    for each in parameters(PUBLIC[name]):
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            assert re.search("options of :(meth|func):`", text), each.name


@pytest.mark.parametrize("kind", CREATED_BY_USERS)
def test_docstring_of_a_class_names_the_parameters_of_its_constructor(kind: type) -> None:
    assert [each.name for each in parameters(kind) if not mentions(docstring(kind), each.name)] == []


@pytest.mark.parametrize(
    "record",
    [
        *(leasehold.LeaseInfo, leasehold.LockMetrics, leasehold.Counters, leasehold.Event, leasehold.Member),
        *(leasehold.Outcome, leasehold.Preset),
    ],
)
def test_docstring_of_a_record_names_every_field(record: Any) -> None:
    assert [name for name in record._fields if not mentions(docstring(record), name)] == []


@pytest.mark.parametrize("name", TWINS)
def test_threads_and_asyncio_have_the_same_parameters(name: str) -> None:
    ours, theirs = getattr(leasehold, name), getattr(aio, name)
    if not isinstance(ours, type):
        assert [each.name for each in parameters(ours)] == [each.name for each in parameters(theirs)]
        return
    for member, method in members_of(ours):
        if not isinstance(method, property):
            names = [each.name for each in parameters(method) if each.name not in THREADS_ONLY]
            assert names == [each.name for each in parameters(inspect.getattr_static(theirs, member))], member


@pytest.mark.parametrize("name", TWINS)
def test_threads_and_asyncio_explain_the_same_parameters(name: str) -> None:
    """Except for their examples, both say the same."""
    ours, theirs = getattr(leasehold, name), getattr(aio, name)
    if not isinstance(ours, type):
        assert docstring(ours).split("Example::")[0] == docstring(theirs).split("Example::")[0]
        return
    for member, method in members_of(ours):
        assert docstring(method) == docstring(inspect.getattr_static(theirs, member)), member


# The examples: indented blocks after a line that ends in "::".


def examples(text: str) -> Iterator[str]:
    lines = inspect.cleandoc(text).splitlines()
    for at, line in enumerate(lines):
        if line.endswith("::"):
            indent = len(line) - len(line.lstrip())
            block = []
            for each in lines[at + 1 :]:
                if each.strip() and len(each) - len(each.lstrip()) <= indent:
                    break
                block.append(each)
            yield textwrap.dedent("\n".join(block)).strip()


def all_examples() -> dict[str, str]:
    found: dict[str, str] = {}
    texts = {name: docstring(each) for name, each in PUBLIC.items()}
    texts |= {module.__name__: module.__doc__ or "" for module in (leasehold, aio)}
    for name, text in texts.items():
        for number, block in enumerate(examples(text)):
            if block not in found.values() and not any(each in name for each in NOT_RUN):
                found[f"{name}-{number}" if number else name] = block
    return found


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that examples use without making them."""
    monkeypatch.chdir(tmp_path)
    with leasehold.connect("memory://docstrings") as locks:
        engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/fences.db")
        yield {**vars(sqlalchemy), "leasehold": leasehold, "aio": aio, "fence": fence, "admin": admin} | {
            "locks": locks,
            "engine": engine,
        }
        engine.dispose()


EXAMPLES = all_examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_in_a_docstring_runs(name: str, world: dict[str, Any], request: pytest.FixtureRequest) -> None:
    text = EXAMPLES[name]
    if text.startswith("def test_"):
        exec(text, world)
        [test] = [value for key, value in world.items() if key.startswith("test_")]
        test(request.getfixturevalue("leases"))
    elif "await " in text or re.search("^ *async with", text, re.MULTILINE):
        asyncio.run(run_in_a_loop(text, world))
    else:
        exec(text, world)


async def run_in_a_loop(text: str, world: dict[str, Any]) -> None:
    """Run an example of asyncio. One that calls ``asyncio.run`` itself runs in another thread."""
    if "asyncio.run" in text:
        await asyncio.to_thread(exec, text, world)
        return
    async with aio.connect("memory://docstrings") as locks:
        world["locks"] = locks
        body = compile(text, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(body, world)
        if inspect.isawaitable(result):
            await result


def test_examples_were_found_in_both_worlds() -> None:
    assert len(EXAMPLES) > 30
    assert {"leasehold", "leasehold.aio", "leasehold.connect", "leasehold.aio.connect"} <= set(EXAMPLES)
    assert {"leasehold.Locks.lock", "leasehold.fence.swap"} <= set(EXAMPLES)
    assert {"leasehold.aio.Once", "leasehold.Once", "leasehold.aio.Group"} <= set(EXAMPLES)
