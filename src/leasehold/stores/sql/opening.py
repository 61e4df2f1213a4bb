"""A connection that is no pool's to close is made ready for use, or closed: whatever happens in between."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any


@contextmanager
def or_closed(raw: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        raw.close()
        raise


@asynccontextmanager
async def or_closed_by_task(raw: Any) -> AsyncIterator[None]:
    """Also when the task is cancelled: so it is when the ``Locks`` is closed."""
    try:
        yield
    except BaseException:
        closing = raw.close()
        if inspect.isawaitable(closing):
            await closing
        raise
