"""The effects that the core yields: it is sent their results. The ``runner.py`` of each shell carries them out."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from .protocol import Bell, Busy, Steps

T = TypeVar("T")
Effects: TypeAlias = Generator["Run | Wait | Listen", Any, T]

RETRY = 0.25
"""How soon a failed call is retried at first; the pause then grows."""


class Run(NamedTuple):
    """Run a store operation within so many seconds; the result is its result."""

    steps: Steps[Any]
    limit: float


class Wait(NamedTuple):
    """Sleep until the bell rings, at most so many seconds (None: no limit)."""

    bell: Bell
    seconds: float | None


class Listen(NamedTuple):
    """Make sure that wake-ups for this attempt arrive. The result is whether they will."""

    attempt: str
    busy: Busy | None
