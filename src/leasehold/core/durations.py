"""Durations as people write them: ``30s``, ``5m``, ``1.5h``. For the library and for the command."""

from __future__ import annotations

USE = "use seconds, or a number with ms, s, m, h or d, such as 30s"
"""For a message about a text that is no duration."""

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse(text: str) -> float | None:
    """The seconds of ``30``, ``30s``, ``500ms``, ``5m``, ``1.5h`` or ``2d``. None for any other text."""
    number = text.rstrip("dhms")
    scale = _UNITS.get(text[len(number) :])
    digits = number.replace(".", "", 1)
    if scale is None or not (digits.isascii() and digits.isdigit()):  # float() alone would take nan, inf and 1_0
        return None
    return float(number) * scale
