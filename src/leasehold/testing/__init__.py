"""What shows that a store keeps every promise, for leasehold's own stores and for yours.

``leasehold.testing.conformance`` is the suite; it needs pytest, the rest does not. ``docs/testing-a-store.md`` says how
to run it against a store.
"""

from __future__ import annotations

from .faults import Faults
from .store import Held, Probe, StoreUnderTest

__all__ = ["Faults", "Held", "Probe", "StoreUnderTest"]
