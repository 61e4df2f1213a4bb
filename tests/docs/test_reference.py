"""docs/reference.md lists what there is, no more and no less."""

from __future__ import annotations

import inspect
import re

import pytest

import leasehold
from leasehold import aio
from leasehold.core.lease import BaseLease

from .blocks import ROOT

PAGE = (ROOT / "docs" / "reference.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_column(title: str) -> list[str]:
    """The names in the first column of a section's table."""
    cells = re.findall(r"^\| ((?:[^|\\]|\\.)+) \|", section(title), re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`@?(?:with )?(\w+)", cell)]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_reference_lists_the_options_of_lock() -> None:
    signature = list(inspect.signature(leasehold.Locks.lock).parameters)
    assert first_column("lock") == [name for name in signature if name not in ("self", "name")]


def is_taken_by_connect(option: str) -> bool:
    try:
        leasehold.connect("memory://", **{option: None})
    except TypeError:
        return False
    return True


def test_reference_lists_the_options_of_connect() -> None:
    assert first_column("connect") == ["url", "namespace", "owner", "kinds", "timing"]
    shown = section("connect").split("| `timing` |")[1].split("\n")[0]
    taken = {option for option in inspect.signature(leasehold.Locks.lock).parameters if is_taken_by_connect(option)}
    assert set(re.findall(r"`(\w+)`", shown)) - {"lock"} == taken


@pytest.mark.parametrize("module", [leasehold, aio])
@pytest.mark.parametrize("name", ["Locks", "Lock", "Lease"])
def test_reference_lists_the_members_of_each_class(module: object, name: str) -> None:
    there = public(getattr(module, name)) - ({"name"} if name == "Lock" else set())
    assert set(first_column(name)) - {"lock" if name == "Lock" else ""} == there


def test_reference_lists_the_events() -> None:
    shown = first_column("Events and log")
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "leasehold").rglob("*.py"))
    assert set(shown) == set(re.findall(r'(?:core|self)\.tell\(\s*"(\w+)"', source))
    assert set(shown) <= set(re.findall(r"``(\w+)``", leasehold.Event.__doc__ or ""))


@pytest.mark.parametrize("record", [leasehold.LeaseInfo, leasehold.LockMetrics, leasehold.Counters, leasehold.Event])
def test_reference_lists_the_fields_of_each_record(record: type) -> None:
    line = next(each for each in PAGE.split("\n\n") if each.startswith(f"`{record.__name__}`"))
    assert set(record._fields) <= set(re.findall(r"`(\w+)", line))  # type: ignore[attr-defined]


def test_reference_lists_the_errors() -> None:
    shown = set(re.findall(r"(?:─ |^)(\w+)", section("Errors").split("```")[1], re.MULTILINE)) - {"text"}
    assert shown == {
        name for name in leasehold.__all__ if isinstance(getattr(leasehold, name), type) and _is_error(name)
    }


def _is_error(name: str) -> bool:
    return issubclass(getattr(leasehold, name), leasehold.LeaseholdError)


def test_faq_explains_each_reason_of_loss() -> None:
    page = (ROOT / "docs" / "faq.md").read_text()
    from leasehold.core import claim

    reasons = [claim.EXPIRED, claim.TAKEN, claim.BY_OPERATOR, claim.CLOSED, claim.FORKED]
    assert all(f"| {reason} |" in page for reason in reasons)
    assert issubclass(leasehold.Lease, BaseLease)
