"""Engines of SQLAlchemy that a test makes, and closes itself: leasehold never does."""

from collections.abc import Callable
from typing import Any

from leasehold.testing import StoreUnderTest


class Engines:
    def __init__(self, sync: Callable[[], Any], tasks: Callable[[], Any]) -> None:
        self._makers = {"threads": sync, "asyncio": tasks}
        self._made: list[Any] = []

    def make(self, side: str) -> Any:
        self._made.append(self._makers[side]())
        return self._made[-1]

    def close(self) -> None:
        for engine in self._made:
            if not hasattr(engine, "sync_engine"):
                engine.dispose()


class WithEngines(StoreUnderTest):
    def connect(self, side: str, **options: Any) -> Any:
        """An engine of asyncio is closed after its Locks, in its loop: the garbage collector would find the sockets of
        one that is closed later, in whichever test runs by then, where they are an error."""
        locks = super().connect(side, **options)
        if side == "asyncio" and self.client is not None:
            source = locks._core.driver.source
            source.close = source._engine.dispose
        return locks
