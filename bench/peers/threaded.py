"""For peers that have no asyncio side: what a program would do, a worker thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .base import Base


class Threaded(Base):
    crowds = False  # the release of one would wait behind the acquire of another

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._worker = ThreadPoolExecutor(1)

    async def aacquire(self, name: str) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, self.acquire, name)

    async def arelease(self, handle: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._worker, self.release, handle)
