"""The driver of :mod:`leasehold.stores.redlock` for threads: a thread and a connection per node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from ...core import clock
from ...core.protocol import Busy, Steps, T, run_steps
from ...errors import StoreUnavailable
from ...runtime.thread_start import Life, start_thread
from ..redis import thread_transport
from ..redis.requests import ScriptCalls, all_well
from ..redis.url import RedisAddress
from .node import REST, Health, Job, ask, awaited, tell
from .store import SLOWEST, Poll, Tell


class ThreadNode:
    """See :class:`leasehold.stores.redlock.node.Node`."""

    def __init__(self, address: RedisAddress) -> None:
        self.transport = thread_transport(address)
        self.health = Health(address.where)
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.thread: Life | None
        try:
            self.thread = start_thread("leasehold-redlock", self._work)
        except RuntimeError:  # for example because the interpreter exits: ``put`` then does the job itself
            self.thread = None

    def put(self, job: Job) -> None:
        if self.thread is None:
            job.done(self.health.excuse(job) or self._do(job))
        else:
            self.jobs.put(job)

    def stop(self) -> None:
        if self.thread is None:
            self._finish()
        else:
            self.jobs.put(None)

    def _work(self) -> None:
        health = self.health
        while True:
            try:
                job = self.jobs.get(timeout=REST if health.owes() else None)
            except Empty:
                self._pay()
                continue
            if job is None:
                break
            job.done(health.excuse(job) or self._do(job))
        self._finish()

    def _finish(self) -> None:
        self._pay()
        self.transport.close()

    def _do(self, asked: Job) -> Any:
        job = self.health.prepare(asked)
        if job is None:
            return None
        if self.health.owes() and (error := self._pay()):
            return self.health.failed(job, error)
        try:
            reply = self.transport.do(job.request, clock.now() + job.limit)
            if isinstance(job.request, ScriptCalls):
                all_well(reply)
        except Exception as error:  # any error: this job has failed, and the next one begins
            return self.health.failed(job, error)
        self.health.worked(job)
        return reply

    def _pay(self) -> BaseException | None:
        try:
            for calls in self.health.debts():
                all_well(self.transport.do(ScriptCalls(calls), clock.now() + SLOWEST))
        except Exception as error:
            self.health.failed(None, error)
            return error
        return None


class RedlockThreads:
    def __init__(self, nodes: Sequence[RedisAddress]) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._addresses = nodes
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may acquire in the middle of an acquire
        self._nodes: list[ThreadNode] = []
        self._closed = False

    def run(self, steps: Steps[T], limit: float) -> T:
        nodes = self._nodes or self._start()
        ends = clock.now() + limit

        def handle(request: Poll | Tell) -> Any:
            if isinstance(request, Tell):
                return tell(nodes, request)
            left = ends - clock.now()
            decided = threading.Lock()
            decided.acquire()
            ballot = ask(nodes, request, left, decided.release)
            decided.acquire(timeout=awaited(request, left))
            return ballot.close()

        return run_steps(steps, handle)

    def _start(self) -> list[ThreadNode]:
        with self._mutex:
            if self._closed:
                raise StoreUnavailable("this Locks is closed")
            if not self._nodes:
                self._nodes = [ThreadNode(address) for address in self._addresses]
            return self._nodes

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        """No push: a release frees the nodes one after the other, and the first to ask acquires."""
        return False

    def forget(self, attempt: str) -> None:
        pass

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            nodes, self._nodes = self._nodes, []
        for node in nodes:
            node.stop()
        for node in nodes:
            if node.thread is not None:
                node.thread.join(1.0)

    def after_fork(self) -> None:
        self._reset()
