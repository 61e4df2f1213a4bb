"""What a peer has to be able to do for the benchmark."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar


class Base:
    """One client of one peer. ``target`` is what the store's set-up gave it: a URL, a file, a folder.

    Handles are whatever the peer's own acquire returns. Every acquire waits as long as it takes.
    """

    waits: ClassVar[bool] = True
    """Whether it can wait for a name that another has: else it takes no part where names are contended for."""

    expires: ClassVar[bool] = True
    """Whether a name comes free by itself when its holder is dead: else it takes no part in takeovers."""

    crowds: ClassVar[bool] = True
    """Whether many tasks of one process can use its asyncio side at once."""

    threads: ClassVar[bool] = True
    """Whether it is to be measured with threads: not where only the event loop is another."""

    new_loop = staticmethod(asyncio.new_event_loop)

    def __init__(self, target: str) -> None:
        self.target = target

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        raise NotImplementedError

    def release(self, handle: Any) -> None:
        raise NotImplementedError

    @classmethod
    def has_asyncio(cls) -> bool:
        return cls.aacquire is not Base.aacquire

    async def aacquire(self, name: str) -> Any:
        raise NotImplementedError

    async def arelease(self, handle: Any) -> None:
        raise NotImplementedError

    async def waiters(self, name: str) -> int:
        """How many wait for the name. Only ours is asked."""
        raise NotImplementedError

    def close(self) -> None:
        pass

    async def aclose(self) -> None:
        pass
