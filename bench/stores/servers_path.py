"""The servers of the tests serve the benchmark too."""

from __future__ import annotations

import sys

from ..processes import ROOT

sys.path.insert(0, str(ROOT / "tests"))

DEAD = 100_000
"""Dead rows of today in the table of the crowded peer."""
