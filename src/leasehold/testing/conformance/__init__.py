"""The conformance suite: what every store must do, as plain pytest functions.

In a test module of yours, with a fixture ``store`` that returns a :class:`leasehold.testing.StoreUnderTest`::

    from leasehold.testing.conformance import *

Each test runs with threads and with asyncio. Its docstring names what it shows: a promise (1 to 6) of
docs/guarantees.md, a property (S1 to S5, L1 to L6) of docs/design/13-proof.md, a behaviour (A1 to E10) of
docs/design/00-behaviours.md, or what docs/reference.md says of a call.
"""

from __future__ import annotations

from importlib import import_module

import pytest

_MODULES = (
    *("acquire", "ambiguity", "blocks", "breaking", "cancelling", "closing", "deadline", "death", "draining"),
    *("elections", "giving_up", "groups", "heirs", "kinds", "listing", "loss", "names", "notes", "onces"),
    *("operations", "permits", "places", "queue", "release", "renewal", "sharing", "stopping", "together", "tokens"),
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
