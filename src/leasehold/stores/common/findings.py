"""The findings of ``leasehold doctor`` and ``init`` about a live store."""

from __future__ import annotations

from typing import NamedTuple

OK, DONE, TO_DO, WARNING, ERROR = "ok", "done", "to do", "warning", "error"
"""The levels. TO_DO is what a dry run would have done."""


class Finding(NamedTuple):
    """One thing that was checked or created. ``advice`` says how to fix it; empty if there is nothing to fix."""

    level: str
    subject: str
    message: str
    advice: str = ""
