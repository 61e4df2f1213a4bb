"""Our cheap NamedTuple behaves as that of typing does."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import typing
from typing import Any

import pytest

from leasehold.core.typed import NamedTuple


class Cheap(NamedTuple):
    a: int
    b: str = "two"
    c: Any = None

    def both(self) -> str:
        return f"{self.a} {self.b}"


class Real(typing.NamedTuple):
    a: int
    b: str = "two"
    c: Any = None

    def both(self) -> str:
        return f"{self.a} {self.b}"


class Empty(NamedTuple):
    pass


def test_it_is_not_typings() -> None:
    assert Cheap.__mro__[1] is not Real.__mro__[1]
    code = "import leasehold.stores.sqlite.threads, leasehold.threads.locks, sys; sys.exit('typing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("args", "named"),
    [((1,), {}), ((1, "x"), {}), ((1, "x", 3), {}), ((), {"a": 1}), ((1,), {"c": 3}), ((), {"c": 3, "a": 1, "b": "x"})],
)
def test_every_way_to_make_one(args: Any, named: Any) -> None:
    cheap, real = Cheap(*args, **named), Real(*args, **named)
    assert cheap == real
    assert (cheap.a, cheap.b, cheap.c) == (real.a, real.b, real.c)
    assert cheap.both() == real.both()
    assert repr(cheap) == repr(real).replace("Real", "Cheap")
    assert cheap._asdict() == real._asdict()
    assert cheap._replace(b="new") == real._replace(b="new")
    assert Cheap._make(real) == cheap
    assert hash(cheap) == hash(real)
    for copied in (copy.copy(cheap), copy.deepcopy(cheap), pickle.loads(pickle.dumps(cheap))):
        assert copied == cheap
        assert type(copied) is Cheap


@pytest.mark.parametrize(
    ("args", "named"),
    [((), {}), ((1, "x", 3, 4), {}), ((1,), {"a": 1}), ((1,), {"d": 1}), ((), {"b": "x"}), ((1, "x", 3), {"a": 5})],
)
def test_every_way_not_to(args: Any, named: Any) -> None:
    for kind in (Real, Cheap):
        with pytest.raises(TypeError):
            kind(*args, **named)


def test_matching() -> None:
    match Cheap(1, "x"):
        case Cheap(a, b, None):
            assert (a, b) == (1, "x")
        case _:
            pytest.fail("it did not match")
    assert Empty() == ()
    with pytest.raises(AttributeError):
        Cheap(1).a = 2  # type: ignore[misc]
