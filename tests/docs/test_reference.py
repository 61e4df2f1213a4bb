"""docs/reference.md lists what there is, no more and no less."""

from __future__ import annotations

import inspect
import re
import sys

import pytest

import leasehold
from leasehold import aio, core
from leasehold.lease import BaseLease

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


def test_options_of_lock() -> None:
    signature = list(inspect.signature(leasehold.Locks.lock).parameters)
    assert first_column("lock") == [name for name in signature if name not in ("self", "name")]


def test_options_of_connect() -> None:
    assert first_column("connect") == ["url", "namespace", "owner", "kinds", "timing"]
    shown = section("connect").split("| `timing` |")[1].split("\n")[0]
    assert set(re.findall(r"`(\w+)`", shown)) - {"lock"} == set(sys.modules["leasehold.connect"]._TIMING)


@pytest.mark.parametrize("module", [leasehold, aio])
@pytest.mark.parametrize("name", ["Locks", "Lock", "Lease"])
def test_members(module: object, name: str) -> None:
    there = public(getattr(module, name)) - ({"name"} if name == "Lock" else set())
    assert set(first_column(name)) - {"lock" if name == "Lock" else ""} == there


def test_events() -> None:
    assert set(first_column("Events and log")) == set(core._MESSAGES)


@pytest.mark.parametrize("record", [leasehold.LeaseInfo, leasehold.LockMetrics, leasehold.Counters, leasehold.Event])
def test_fields(record: type) -> None:
    line = next(each for each in PAGE.split("\n\n") if each.startswith(f"`{record.__name__}`"))
    assert set(record._fields) <= set(re.findall(r"`(\w+)", line))  # type: ignore[attr-defined]


def test_errors() -> None:
    shown = set(re.findall(r"(?:─ |^)(\w+)", section("Errors").split("```")[1], re.MULTILINE)) - {"text"}
    assert shown == {
        name for name in leasehold.__all__ if isinstance(getattr(leasehold, name), type) and _is_error(name)
    }


def _is_error(name: str) -> bool:
    return issubclass(getattr(leasehold, name), leasehold.LeaseholdError)


def test_reasons_of_loss_are_explained() -> None:
    page = (ROOT / "docs" / "faq.md").read_text()
    from leasehold import lease

    reasons = [lease.EXPIRED, lease.TAKEN, lease.INTERRUPTED, lease.CLOSED, lease.FORKED]
    assert all(f"| {reason} |" in page for reason in reasons)
    assert issubclass(leasehold.Lease, BaseLease)
