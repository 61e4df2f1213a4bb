"""A driver's error as the cause of ours."""

from __future__ import annotations


def cut_chain(error: BaseException) -> None:
    """Hide the errors that a driver met on the way to this one: they repeat it, each with a traceback of its own.

    A cause that the driver names itself stays, unless it is only how ``asyncio.timeout`` ends a call."""
    if not isinstance(error.__cause__, Exception):
        error.__cause__ = None  # which hides the context, too
