"""A deliberate fault, and who has to notice it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """In ``file`` of ``src/leasehold``, ``old`` (which must be there exactly once) becomes ``new``."""

    title: str
    file: str
    old: str
    new: str
    conformance: str = ""
    """Where simulation cannot see it: what to select (``-k``) of the conformance suite, which then judges it."""
    stores: tuple[str, ...] = ("memory", "sqlite")
    """On which stores. Others than these two need a server."""
    special: str = ""
    """Instead, where it takes a fault that the suite knows nothing of: which file of ``tests/stores`` judges it. With
    its folder, which file of ``tests``."""
