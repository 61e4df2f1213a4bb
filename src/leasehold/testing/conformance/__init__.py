"""The conformance suite: what every store must do, as plain pytest functions.

In a test module of yours, with a fixture ``store`` that returns a :class:`leasehold.testing.StoreUnderTest`::

    from leasehold.testing.conformance import *

Each test runs with threads and with asyncio. Its docstring names what it shows: a promise of the contract, a property
of PROOF (S1, L4 …) or a line of the source documents (A1, E2 …).
"""

from __future__ import annotations

from importlib import import_module

import pytest

_MODULES = (
    *("acquire", "ambiguity", "breaking", "cancelling", "closing", "deadline", "death", "listing", "loss", "names"),
    *("operations", "permits", "queue", "release", "renewal", "sharing", "tokens"),
)
pytest.register_assert_rewrite(*(f"{__name__}.{each}" for each in _MODULES))

from .fixtures import scene, tasks, threads  # noqa: E402

__all__ = ["scene", "tasks", "threads"]

for _each in _MODULES:
    for _name, _value in vars(import_module(f"{__name__}.{_each}")).items():
        if _name.startswith("test_"):
            assert _name not in globals(), f"two tests are called {_name}"
            globals()[_name] = _value
            __all__.append(_name)
