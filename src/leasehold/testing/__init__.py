"""Tests that show whether a store keeps every promise, for leasehold's own stores and for yours.

``leasehold.testing.conformance`` is the suite and needs pytest; the rest does not. ``docs/testing-a-store.md``
explains how to run it against a store.
"""

from __future__ import annotations

from .faults import Faults
from .store import Held, Probe, StoreUnderTest

__all__ = ["Faults", "Held", "Probe", "StoreUnderTest"]
