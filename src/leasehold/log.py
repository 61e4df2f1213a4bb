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


_enabled: Callable[[int], bool] | None = None


def heard(level: int) -> bool:
    """Whether what is logged at this level gets anywhere. Asked on the hot path, before a message is put together."""
    global _enabled
    if level >= WARNING:
        return True
    if show is not None:
        return False
    if _enabled is None:
        if "logging" not in sys.modules:
            return False
        import logging

        _enabled = logging.getLogger("leasehold").isEnabledFor
    return _enabled(level)


def log(level: int, message: str, *args: object, exc: BaseException | None = None, **fields: Any) -> None:
    """Log ``message % args``; ``fields`` become attributes of the record, prefixed with ``lease_``."""
    if not heard(level):
        return
    if show is not None:
        show(message % args, fields.get("event"))
        return
    import logging

    extra = {f"lease_{key}": value for key, value in fields.items()}
    logging.getLogger("leasehold").log(level, message, *args, exc_info=exc, extra=extra)
