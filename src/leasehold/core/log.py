"""Logging under ``leasehold``, with structured fields. Imports ``logging`` only when a line is to be shown.

Importing ``logging`` doubles the start-up time of ``leasehold run``. A program that has not imported it has not
configured it either, so only warnings and errors would be shown. Those import it, the rest is dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40


def shown(text: str, keep: str = "") -> str:
    """The text, safe for a terminal or a log: unprintable characters are escaped, as ``\\x1b``. Text from a store may
    contain escape sequences."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


show: Callable[[str, Mapping[str, Any]], None] | None = None
"""Set by the command: called with each warning and its fields, instead of logging it."""


_enabled: Callable[[int], bool] | None = None


def is_shown(level: int) -> bool:
    """Whether a line of this level is shown. Called on the hot path, before the message is built."""
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
    if not is_shown(level):
        return
    args = tuple(shown(arg) if isinstance(arg, str) else arg for arg in args)
    if show is not None:
        show(message % args, fields)
        return
    import logging

    extra = {f"lease_{key}": value for key, value in fields.items()}
    logging.getLogger("leasehold").log(level, message, *args, exc_info=exc, extra=extra)


def notice(message: str, *args: object, **fields: Any) -> None:
    """Log a line of level INFO. The command shows it, too: whoever waits at a terminal wants to know for what."""
    log(INFO if show is None else WARNING, message, *args, **fields)
