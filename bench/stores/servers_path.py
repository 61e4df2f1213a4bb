"""The servers of the tests serve the benchmark too."""

from __future__ import annotations

import sys

from ..processes import ROOT

sys.path.insert(0, str(ROOT / "tests"))

DEAD, CROWDED = 100_000, "100,000 dead rows"
"""Dead rows of today in the table of the peer of that name."""
