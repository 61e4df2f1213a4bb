"""A connection that is no pool's to close is made ready for use, or closed: whatever happens in between."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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


def unless_cancelled(open: Callable[[float], Awaitable[Any]]) -> Callable[[float], Awaitable[Any]]:
    """For a task of our own that connects: the same, but what it has opened is closed if it is to end.

    Python 3.11's ``asyncio.wait_for``, by which some drivers connect, forgets that it was cancelled if that came in the
    moment in which it was done."""

    async def opened(limit: float) -> Any:
        connection = await open(limit)
        if (task := asyncio.current_task()) is not None and task.cancelling():
            await connection.close()
            raise asyncio.CancelledError
        return connection

    return opened
