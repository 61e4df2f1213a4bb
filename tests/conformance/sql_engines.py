"""Engines of SQLAlchemy, and pools, that a test makes, and closes itself: leasehold never does."""

from collections.abc import Awaitable, Callable
from typing import Any

from leasehold.testing import StoreUnderTest
from leasehold.testing.store import ASYNCIO, open_locks


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


class ClosesItsClient(StoreUnderTest):
    """Closes an asyncio client after its ``Locks``, in its loop. If it was closed later, the garbage collector would
    find its sockets, and make them an error of whichever test runs by then."""

    async def close_client(self, client: Any) -> None:
        await client.close()

    def connect(self, side: str, **options: Any) -> Any:
        if self.client is None or side != ASYNCIO:
            return super().connect(side, **options)
        client = self.client(side)
        locks = open_locks(client, self.opener, side, **options)
        close: Callable[[], Awaitable[None]] = locks.close

        async def close_both() -> None:
            await close()
            await self.close_client(client)

        locks.close = close_both
        return locks


class WithEngines(ClosesItsClient):
    async def close_client(self, client: Any) -> None:
        await client.dispose()
