"""The driver for asyncio: kazoo's threads do the I/O, and what they bring is handed to the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...core import clock
from ...core.protocol import Busy, Steps, T, await_steps
from ...errors import StoreError, StoreUnavailable
from .link import Link
from .requests import Calls, Each, Up
from .threads import ZooKeeperThreads, answer, begin, begin_each, checked, listens


class ZooKeeperTasks:
    def __init__(self, link: Link) -> None:
        self.link = link

    @property
    def on_ring(self) -> Callable[..., None]:
        return self.link.on_ring

    @on_ring.setter
    def on_ring(self, function: Callable[..., None]) -> None:
        self.link.on_ring = function

    async def run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit
        return await await_steps(steps, lambda request: self._handle(request, ends))

    async def _handle(self, request: Any, ends: float) -> Any:
        if isinstance(request, Each):
            return await self._each(request, request.ends(ends))
        return await self._answer(request, begin(self.link, request), ends)

    async def _each(self, request: Each, ends: float) -> list[Any]:
        answers: list[Any] = []
        for each, results in begin_each(self.link, request):
            try:
                answers.append(results if isinstance(results, StoreError) else await self._answer(each, results, ends))
            except StoreError as error:
                answers.append(error)
        return answers

    async def _answer(self, request: Up | Calls, results: list[Any], ends: float) -> Any:
        try:
            async with asyncio.timeout(max(0.0, ends - clock.now())):
                for result in reversed(results):  # one wait for all: they come in order
                    if not result.ready():
                        await _arrival(result)
        except TimeoutError as error:
            raise StoreUnavailable(f"{self.link.where}: no server with a quorum answers") from error
        answers = [
            checked(self.link, result.value) if result.exception is None else answer(self.link, result.exception)
            for result in results
        ]
        return None if isinstance(request, Up) else answers

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        return listens(self.link, attempt)

    def forget(self, attempt: str) -> None:
        self.link.watching.forget(attempt)

    def after_fork(self) -> None:
        self.link.after_fork()

    async def close(self) -> None:
        await asyncio.to_thread(self.link.close)

    def new_loop(self) -> None:
        """Nothing is bound to a loop."""

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        return ZooKeeperThreads(self.link).run(steps, limit)

    def close_at_exit(self) -> None:
        self.link.close()


async def _arrival(result: Any) -> None:
    """Until a result of kazoo's is there: one of its threads tells the loop."""
    loop = asyncio.get_running_loop()
    there = loop.create_future()

    def arrived() -> None:
        if not there.done():
            there.set_result(None)

    def tell(_: Any) -> None:
        try:
            loop.call_soon_threadsafe(arrived)
        except RuntimeError:
            pass  # the loop is closed: nobody waits

    result.rawlink(tell)
    await there
