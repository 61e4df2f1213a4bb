"""What a check of a live store has found, for ``leasehold doctor``."""

from __future__ import annotations

from typing import NamedTuple

OK, WARNING, ERROR = "ok", "warning", "error"


class Finding(NamedTuple):
    """``level`` is ``ok``, ``warning`` or ``error``; ``advice`` says what to do about it, empty when it is ok."""

    level: str
    subject: str
    message: str
    advice: str = ""
