"""Engines of SQLAlchemy that a test makes, and closes itself: leasehold never does."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any


class Engines:
    def __init__(self, sync: Callable[[], Any], tasks: Callable[[], Any]) -> None:
        self._makers = {"threads": sync, "asyncio": tasks}
        self._made: list[Any] = []

    def make(self, side: str) -> Any:
        self._made.append(self._makers[side]())
        return self._made[-1]

    def close(self) -> None:
        for engine in self._made:
            if hasattr(engine, "sync_engine"):
                asyncio.run(_dispose(engine))
            else:
                engine.dispose()


async def _dispose(engine: Any) -> None:
    with contextlib.suppress(RuntimeError):  # its loop is closed, which some drivers mind
        await engine.dispose()
