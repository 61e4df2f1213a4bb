"""The driver for asyncio: kazoo's threads do the I/O, and what they bring is handed to the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...core import clock
from ...core.protocol import Busy, Steps, T, await_steps
from .threads import Sent, ZooKeeperClients, ZooKeeperThreads


class ZooKeeperTasks:
    def __init__(self, clients: ZooKeeperClients) -> None:
        self.clients = clients

    @property
    def on_ring(self) -> Callable[..., None]:
        return self.clients.stakes.on_ring

    @on_ring.setter
    def on_ring(self, function: Callable[..., None]) -> None:
        self.clients.stakes.on_ring = function

    async def run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit
        return await await_steps(steps, lambda request: self._handle(request, ends))

    async def _handle(self, request: Any, ends: float) -> Any:
        sent = Sent(request, self.clients.where, ends)
        for each in reversed(sent.answers):  # one wait for all: they come in order
            if not each.ready():
                await _arrival(each, sent.left(each))
        return sent.result()

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        return self.clients.listens(attempt)

    def forget(self, attempt: str) -> None:
        self.clients.stakes.forget(attempt)

    def after_fork(self) -> None:
        self.clients.after_fork()

    async def close(self) -> None:
        await asyncio.to_thread(self.clients.close)

    def new_loop(self) -> None:
        """Nothing is bound to a loop."""

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        return ZooKeeperThreads(self.clients).run(steps, limit)

    def close_at_exit(self) -> None:
        self.clients.close()


async def _arrival(answer: Any, seconds: float) -> None:
    """Until an answer of kazoo's is there, or so many seconds: one of its threads tells the loop."""
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

    answer.rawlink(tell)
    timer = loop.call_later(seconds, arrived)
    try:
        await there
    finally:
        timer.cancel()
