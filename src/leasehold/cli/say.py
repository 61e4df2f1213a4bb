"""Messages of the command: lines on standard error, and durations and times in a readable form."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ..core.log import shown

if TYPE_CHECKING:
    from datetime import datetime

    from ..model import LeaseInfo


def say(message: str) -> None:
    """Write a line to standard error, unbuffered and in one call. Unprintable characters are escaped."""
    text = shown(message, keep="\n")
    try:
        os.write(2, f"leasehold: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # standard error is closed, or its reader is gone


def span(seconds: float) -> str:
    """A duration in its two largest units: 0.25s, 4.2s, 31s, 5m03s, 2h10m, 3d4h."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.2g}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def local(moment: datetime) -> str:
    """The moment in the local time zone, in ISO 8601."""
    return moment.astimezone().isoformat(timespec="seconds")


def held(holder: LeaseInfo) -> str:
    """Who holds a lease, since when, with which token."""
    age = span(time.time() - holder.acquired.timestamp())
    return f"held by {shown(holder.owner)} since {local(holder.acquired)} ({age}), token {holder.token}"
