"""What the core asks to be done: it yields these, and is sent their results. The ``runner.py`` of each
shell carries them out."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from .protocol import Bell, Busy, Steps

T = TypeVar("T")
Effects: TypeAlias = Generator["Run | Wait | Listen", Any, T]

RETRY = 0.25
"""How soon a call that failed is tried again; growing from here."""


class Run(NamedTuple):
    """Run a store operation within so many seconds; the result is its result."""

    steps: Steps[Any]
    limit: float


class Wait(NamedTuple):
    """Sleep until the bell rings, at most so many seconds (None: however long)."""

    bell: Bell
    seconds: float | None


class Listen(NamedTuple):
    """See that rings for this attempt arrive. The result is whether they will."""

    attempt: str
    busy: Busy | None
