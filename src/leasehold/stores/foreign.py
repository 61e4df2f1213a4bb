"""Whether what comes from a store has the form that leasehold writes: others may have written there, too."""

from __future__ import annotations

import json
from typing import Any

MOST_TOKEN = 2**63 - 1
MOST_PERMITS = 10**9
MOST_TIME = 10**16
"""In µs or ms; more than any calendar needs."""


def is_count(value: object, most: int, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_data(value: Any) -> bool:
    """What the holder has said of itself: JSON as text, or nothing."""
    if value is None:
        return True
    try:
        json.loads(value if isinstance(value, str) else "")
    except (ValueError, RecursionError):
        return False
    return True
