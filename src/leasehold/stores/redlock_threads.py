"""The drivers of :mod:`leasehold.stores.redlock`: a thread and a connection per node; none waits for another."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from .. import clock
from ..errors import StoreError, StoreUnavailable
from ..protocol import Busy, Steps, T, run_steps
from .redis import thread_link
from .redis.errors import DRIVER_ERRORS, translate
from .redis.scripts import Call
from .redis.store import Keys, Many
from .redis.url import Address
from .redlock import Poll, Tell

REST = 0.5
"""A node that has failed is left alone for so long: what it is asked meanwhile has failed too, at once."""
OWED = 30.0
"""How long a release that a node did not take is tried again."""
MOST_OWED = 10_000


class Job(NamedTuple):
    """What one node has to do, and who is told."""

    request: Call | Many | Keys
    limit: float
    done: Callable[[Any], None]
    owed_until: float
    """When it fails it is tried again until then; 0 for never."""


class Node:
    """One Redis: its jobs are done one after the other, in the order in which they came."""

    def __init__(self, address: Address) -> None:
        self._where = address.where
        self._link = thread_link(address)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._owed: deque[Job] = deque(maxlen=MOST_OWED)
        self._down_until = 0.0
        self._error: StoreError | None = None
        self.thread = threading.Thread(target=self._work, name="leasehold-redlock", daemon=True)
        self.thread.start()

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.done(self._do(job))
            while self._owed and self._error is None:
                late = self._owed.popleft()
                if late.owed_until > clock.now():
                    self._do(late)
        self._link.close()

    def _do(self, job: Job) -> Any:
        if self._error is not None and clock.now() < self._down_until:
            if job.owed_until:
                self._owed.append(job)
            return self._error
        try:
            match job.request:
                case Call():
                    reply = self._link.send((job.request,), job.limit)[0]
                case Many(calls):
                    reply = self._link.send(calls, job.limit)
                case Keys(pattern):
                    reply = self._link.keys(pattern, job.limit)
        except DRIVER_ERRORS as error:
            self._error = translate(error, self._where)
            self._error.__cause__ = error
            self._down_until = clock.now() + REST
            if job.owed_until:
                self._owed.append(job)
            return self._error
        self._error = None
        return reply


class Ballot:
    """The answers to one question, and whoever waits until there are enough."""

    def __init__(self, nodes: int, enough: Callable[[dict[int, Any]], bool]) -> None:
        self._answers: dict[int, Any] = {}
        self._nodes = nodes
        self._enough = enough
        self._mutex = threading.Lock()
        self._decided = threading.Lock()
        self._decided.acquire()
        self._open = True

    def vote(self, node: int, answer: Any) -> None:
        with self._mutex:
            if not self._open:
                return
            self._answers[node] = answer
            if len(self._answers) == self._nodes or self._enough(self._answers):
                self._open = False
                self._decided.release()

    def wait(self, seconds: float) -> dict[int, Any]:
        self._decided.acquire(timeout=max(0.0, seconds))
        with self._mutex:
            self._open = False
            return self._answers


class RedlockThreads:
    def __init__(self, nodes: Sequence[Address]) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._addresses = nodes
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._nodes: list[Node] = []
        self._closed = False

    def run(self, steps: Steps[T], limit: float) -> T:
        nodes = self._nodes or self._start()
        ends = clock.now() + limit

        def handle(request: Any) -> Any:
            match request:
                case Poll(question, enough, patience):
                    left = ends - clock.now()
                    ballot = Ballot(len(nodes), enough)
                    owed = clock.now() + OWED if _gives_back(question) else 0.0
                    for number, node in enumerate(nodes):
                        node.put(Job(question, min(patience, left), partial(ballot.vote, number), owed))
                    return ballot.wait(min(left, patience * 2))
                case Tell(call, until):
                    for node in nodes:
                        node.put(Job(call, 0.5, lambda answer: None, clock.now() + until))
                    return None
            raise TypeError(request)

        return run_steps(steps, handle)

    def _start(self) -> list[Node]:
        with self._mutex:
            if self._closed:
                raise StoreUnavailable("this Locks is closed")
            if not self._nodes:
                self._nodes = [Node(address) for address in self._addresses]
            return self._nodes

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        """Nobody is rung: a release frees nodes one after the other, and whoever is first wins."""
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
            node.thread.join(1.0)

    def after_fork(self) -> None:
        self._reset()


class RedlockTasks:
    """For asyncio: the same, from a worker thread; one, so that operations keep their order after a cancellation."""

    def __init__(self, nodes: Sequence[Address]) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._inner = RedlockThreads(nodes)
        self._worker: ThreadPoolExecutor | None = None

    async def run(self, steps: Steps[T], limit: float) -> T:
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="leasehold-redlock")
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._inner.run, steps, limit)

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        return False

    def forget(self, attempt: str) -> None:
        pass

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        await asyncio.to_thread(self._inner.close)
        if worker is not None:
            worker.shutdown(wait=False)

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        return self._inner.run(steps, limit)

    def close_at_exit(self) -> None:
        self._inner.close()

    def new_loop(self) -> None:
        """Nothing here is bound to a loop."""

    def after_fork(self) -> None:
        self._worker = None
        self._inner.after_fork()


def _gives_back(question: Call | Many | Keys) -> bool:
    return isinstance(question, Call) and question.script.name in ("release", "abandon")
