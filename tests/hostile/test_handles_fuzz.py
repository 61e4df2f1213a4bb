"""What ``accept`` is given may come from anybody: it is checked against its form before the store is asked."""

from __future__ import annotations

import base64
import json
import secrets
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import leasehold
from leasehold import aio

FIELDS = ["format", "namespace", "name", "attempt", "token", "shape", "limit", "weight", "kind", "ttl", "data"]
RIGHT = [1, "", "a", "0" * 32, 7, "lock", 1, 1, "lock", 30, None]
WRONG: list[tuple[str, Any]] = [
    ("namespace", None),
    ("name", ""),
    ("name", "x" * 513),
    ("name", "a\n"),
    ("name", "\ud800"),
    ("attempt", ""),
    ("attempt", "x" * 32),
    ("attempt", "0" * 5000),
    ("token", -1),
    ("token", 2**63),
    ("token", True),
    ("token", 1.0),
    ("shape", "circle"),
    ("limit", 0),
    ("limit", 2),
    ("weight", -1),
    ("weight", 0),
    ("weight", 2),
    ("weight", True),
    ("kind", 5),
    ("kind", "\x1b"),
    ("ttl", "30"),
    ("ttl", -1),
    ("ttl", float("nan")),
    ("data", ["x" * 5000]),
]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([-1, 0, 2**63]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def packed(fields: object) -> str:
    return "leasehold-" + base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")


@st.composite
def nearly_right(draw: st.DrawFn) -> str:
    fields: list[Any] = list(RIGHT)
    for place in draw(st.sets(st.integers(1, len(fields) - 1), min_size=1, max_size=3)):
        fields[place] = draw(anything)
    return packed(fields[: draw(st.sampled_from([11, 11, 11, 10]))])


def test_well_formed_handle_is_accepted_as_a_handle() -> None:
    with leasehold.connect("memory://") as locks, pytest.raises(leasehold.LeaseLost):
        locks.accept(packed(RIGHT))


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_handle_with_a_wrong_field_is_refused_by_its_name(field: str, value: object) -> None:
    fields = list(RIGHT)
    fields[FIELDS.index(field)] = value
    with leasehold.connect("memory://") as locks, pytest.raises(ValueError, match=field):
        locks.accept(packed(fields))
    with pytest.raises(ValueError, match=field):
        aio.connect("memory://").accept(packed(fields))


@settings(max_examples=300, deadline=None)
@given(
    text=nearly_right()
    | st.text(max_size=30)
    | st.builds(packed, anything)
    | st.sampled_from(
        [
            "leasehold-" + base64.urlsafe_b64encode(each).decode()
            for each in (b"[" * 100_000, b"9" * 5000, b"\xff", b"[1]" * 2)
        ]
    )
)
def test_any_handle_is_refused_or_finds_nothing_and_harms_nobody(text: str) -> None:
    where = f"memory://{secrets.token_hex(6)}"
    with leasehold.connect(where) as locks, leasehold.connect(where) as other:
        with locks.lock("a").acquire() as held:
            with pytest.raises((ValueError, leasehold.LeaseLost)) as raised:
                other.accept(text)
            assert str(raised.value)
            held.check()
            held.renew()
        assert locks.lock("a").acquire(timeout=1).release()
