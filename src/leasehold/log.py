"""Logging under ``leasehold``, with structured fields, without importing ``logging`` for nothing.

Importing ``logging`` doubles the start-up of ``leasehold run``. A program that has not imported it has configured
nothing, so only warnings and errors would be shown: those import it, the rest is dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from .typed import Any

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40

show: Callable[[str, str | None], None] | None = None
"""Set by the command: called with each warning and its event instead of logging it."""


def log(level: int, message: str, *args: object, exc: BaseException | None = None, **fields: Any) -> None:
    """Log ``message % args``; ``fields`` become attributes of the record, prefixed with ``lease_``."""
    if level < WARNING and "logging" not in sys.modules:
        return
    if show is not None:
        if level >= WARNING:
            show(message % args, fields.get("event"))
        return
    import logging

    logger = logging.getLogger("leasehold")
    if logger.isEnabledFor(level):
        extra = {f"lease_{key}": value for key, value in fields.items()}
        logger.log(level, message, *args, exc_info=exc, extra=extra)
