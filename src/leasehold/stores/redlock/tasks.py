"""The driver of :mod:`leasehold.stores.redlock` for asyncio: one task per node, in the caller's loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...core import clock
from ...core.protocol import Busy, Steps, T, await_steps
from ...errors import StoreUnavailable
from ..redis import task_transport
from ..redis.requests import ScriptCalls, all_well
from ..redis.url import RedisAddress
from .node import REST, Health, Job, ask, awaited, tell
from .store import SLOWEST, Poll, Tell
from .threads import RedlockThreads


class TaskNode:
    """See :class:`leasehold.stores.redlock.node.Node`. Its task lives as long as it has jobs."""

    def __init__(self, address: RedisAddress) -> None:
        self.transport = task_transport(address)
        self.health = Health(address.where)
        self.jobs: deque[Job] = deque()
        self.task: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None

    def put(self, job: Job) -> None:
        """Add a job. It is done even if its caller is cancelled, and before any later job."""
        self.jobs.append(job)
        self._begin()

    def _begin(self) -> None:
        if self.task is None or self.task.done():
            self.task = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        health = self.health
        while self.jobs:
            job = self.jobs.popleft()
            job.done(health.excuse(job) or await self._do(job))
        if health.owes() and not health.resting():
            await self._pay()
        if health.owes():
            self._later = asyncio.get_running_loop().call_later(REST, self._begin)

    async def _do(self, asked: Job) -> Any:
        job = self.health.prepare(asked)
        if job is None:
            return None
        if self.health.owes() and (error := await self._pay()):
            return self.health.failed(job, error)
        try:
            reply = await self.transport.do(job.request, clock.now() + job.limit)
            if isinstance(job.request, ScriptCalls):
                all_well(reply)
        except asyncio.CancelledError:  # all tasks of the loop were cancelled; the call may have been sent or not
            self.health.failed(job, ConnectionError("the call was cancelled"))
            raise
        except Exception as error:  # any error: this job has failed, and the next one begins
            return self.health.failed(job, error)
        self.health.worked(job)
        return reply

    async def _pay(self) -> BaseException | None:
        try:
            for calls in self.health.debts():
                all_well(await self.transport.do(ScriptCalls(calls), clock.now() + SLOWEST))
        except Exception as error:
            self.health.failed(None, error)
            return error
        return None

    async def close(self) -> None:
        if self.task is not None and not self.task.done():
            await asyncio.wait((self.task,), timeout=1.0)
            self.task.cancel()
        if self._later is not None:
            self._later.cancel()
        await self.transport.close()


class RedlockTasks:
    def __init__(self, nodes: Sequence[RedisAddress]) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._addresses = nodes
        self._at_exit = RedlockThreads(nodes)
        self._nodes: list[TaskNode] = []
        self._closed = False

    async def run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit
        return await await_steps(steps, lambda request: self._answer(request, ends))

    async def _answer(self, request: Poll | Tell, ends: float) -> Any:
        nodes = self._nodes or self._start()
        if isinstance(request, Tell):
            return tell(nodes, request)
        left = ends - clock.now()
        decided = asyncio.get_running_loop().create_future()
        ballot = ask(nodes, request, left, lambda: decided.set_result(None))
        await asyncio.wait((decided,), timeout=awaited(request, left))
        return ballot.close()

    def _start(self) -> list[TaskNode]:
        if self._closed:
            raise StoreUnavailable("this Locks is closed")
        self._nodes = [TaskNode(address) for address in self._addresses]
        return self._nodes

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        return False

    def forget(self, attempt: str) -> None:
        pass

    async def close(self) -> None:
        self._closed = True
        nodes, self._nodes = self._nodes, []
        await asyncio.gather(*(node.close() for node in nodes))

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        return self._at_exit.run(steps, limit)

    def close_at_exit(self) -> None:
        self._at_exit.close()
        self.new_loop()

    def new_loop(self) -> None:
        for node in self._nodes:
            node.transport.after_fork()
        self._nodes = []
        self._closed = False

    def after_fork(self) -> None:
        self.new_loop()
        self._at_exit.after_fork()
