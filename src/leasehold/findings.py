"""What ``leasehold doctor`` and ``init`` have to say about a live store."""

from __future__ import annotations

from typing import NamedTuple

OK, DONE, TO_DO, WARNING, ERROR = "ok", "done", "to do", "warning", "error"
"""TO_DO is what a dry run would have done."""


class Finding(NamedTuple):
    """One thing that was looked at or made; ``advice`` says how to mend it, empty when there is nothing to mend."""

    level: str
    subject: str
    message: str
    advice: str = ""
