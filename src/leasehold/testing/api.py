"""Threads and tasks behind one interface, so that a test is written once.

``Threads`` calls leasehold as it is. ``Tasks`` has an event loop in a thread of its own and hands it the calls, one
task each. Both start calls that wait as a :class:`Job`, which can be cancelled.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from ..core.lease import current
from ..errors import AcquireCancelled

PATIENCE = 30.0
"""How long a test waits for what must happen, in seconds: a guard against hanging, not a bound."""


class Job:
    """A call that runs in the background. ``lease`` is the lease of the block that it has entered."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.future: Future[Any] = Future()
        self.cancel = cancel
        self.lease: Any = None

    def done(self) -> bool:
        return self.future.done()

    def result(self, timeout: float = PATIENCE) -> Any:
        return self.future.result(timeout)

    def error(self, timeout: float = PATIENCE) -> BaseException | None:
        return self.future.exception(timeout)


class Work:
    """Work for ``once``: it records the token of each start, and runs until it may end."""

    def __init__(self, result: Any = None, ended: bool = False) -> None:
        self.tokens: list[int] = []
        self.result = result
        self.may_end = threading.Event()
        if ended:
            self.may_end.set()

    def begin(self) -> Any:
        lease = current()
        self.tokens.append(lease.token)
        return lease

    def end(self) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Threads:
    """leasehold for threads."""

    side = "threads"
    cancelled: type[BaseException] = AcquireCancelled

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return function(*args, **options)

    def collect(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        return list(function(*args))

    def gather(self, function: Callable[..., Any], into: list[Any]) -> Job:
        """Collect the items of an iterator into a list, in the background, until it ends."""
        return self._start(lambda job: into.extend(function()), lambda: None)

    def acquire(self, lock: Any, timeout: float | None) -> Job:
        cancel = threading.Event()
        return self._start(lambda job: lock.acquire(timeout, cancel=cancel), cancel.set)

    def start(self, function: Callable[..., Any], *args: Any) -> Job:
        return self._start(lambda job: function(*args), lambda: None)

    def block(self, lock: Any, ended: Callable[[Any], bool]) -> Job:
        def body(job: Job) -> None:
            with lock as lease:
                job.lease = lease
                while not ended(lease):
                    time.sleep(0.01)

        return self._start(body, lambda: None)

    def working(self, work: Work) -> Callable[[], Any]:
        """The work as a function for ``once``."""

        def function() -> Any:
            lease = work.begin()
            while not work.may_end.is_set() and lease.valid:
                time.sleep(0.01)
            return work.end()

        return function

    def lead(self, election: Any, elected: Callable[[Any], Any]) -> Job:
        """Be a candidate; as the leader call ``elected(term)``; if that returns None, lead until notified to stop."""

        def callback(term: Any) -> Any:
            result = elected(term)
            if result is None:
                term.stopping.wait()
            return result

        return self._start(lambda job: election.run(callback), lambda: None)

    def wait_lost(self, lease: Any, timeout: float) -> bool:
        return bool(lease.lost.wait(timeout))

    def close(self) -> list[str]:
        return []

    def _start(self, work: Callable[[Job], Any], cancel: Callable[[], None]) -> Job:
        job = Job(cancel)

        def run() -> None:
            try:
                job.future.set_result(work(job))
            except BaseException as error:
                job.future.set_exception(error)

        threading.Thread(target=run, name="conformance", daemon=True).start()
        return job


class Tasks:
    """leasehold for asyncio, in a loop of its own."""

    side = "asyncio"
    cancelled: type[BaseException] = asyncio.CancelledError

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._complaints: list[str] = []
        self.loop.set_exception_handler(lambda _, context: self._complaints.append(str(context)))
        self._thread = threading.Thread(target=self.loop.run_forever, name="conformance-loop", daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        async def work(job: Job) -> Any:
            result = function(*args, **options)
            return await result if inspect.isawaitable(result) else result

        return self._start(work).result()

    def collect(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        async def work(job: Job) -> list[Any]:
            return [each async for each in function(*args)]

        found: list[Any] = self._start(work).result()
        return found

    def gather(self, function: Callable[..., Any], into: list[Any]) -> Job:
        async def work(job: Job) -> None:
            async for each in function():
                into.append(each)  # noqa: PERF401  (one by one: others look)

        return self._start(work)

    def acquire(self, lock: Any, timeout: float | None) -> Job:
        async def work(job: Job) -> Any:
            return await lock.acquire(timeout)

        return self._start(work)

    def start(self, function: Callable[..., Any], *args: Any) -> Job:
        async def work(job: Job) -> Any:
            return await function(*args)

        return self._start(work)

    def block(self, lock: Any, ended: Callable[[Any], bool]) -> Job:
        async def work(job: Job) -> None:
            async with lock as lease:
                job.lease = lease
                while not ended(lease):  # noqa: ASYNC110  (it is asked of another thread)
                    await asyncio.sleep(0.01)

        return self._start(work)

    def working(self, work: Work) -> Callable[[], Any]:
        async def function() -> Any:
            work.begin()
            while not work.may_end.is_set():  # noqa: ASYNC110  (it is told by another thread)
                await asyncio.sleep(0.01)
            return work.end()

        return function

    def lead(self, election: Any, elected: Callable[[Any], Any]) -> Job:
        async def callback(term: Any) -> Any:
            result = elected(term)
            if result is None:
                await asyncio.Event().wait()  # until cancelled
            return result

        async def work(job: Job) -> Any:
            return await election.run(callback)

        return self._start(work)

    def wait_lost(self, lease: Any, timeout: float) -> bool:
        async def wait() -> bool:
            try:
                return bool(await asyncio.wait_for(lease.lost.wait(), timeout))
            except TimeoutError:
                return bool(lease.lost.is_set())

        return bool(self.call(wait))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the loop, to its end."""
        return self.call(lambda: work)

    def close(self) -> list[str]:
        """End the loop. Returns the errors in it that nobody saw."""

        async def finish() -> None:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                self._complaints.append(f"left over: {task}")
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            await self.loop.shutdown_asyncgens()
            await self.loop.shutdown_default_executor()

        if not self.loop.is_closed():
            asyncio.run_coroutine_threadsafe(finish(), self.loop).result(PATIENCE)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(PATIENCE)
            self.loop.close()
        return self._complaints

    def _start(self, work: Callable[[Job], Coroutine[Any, Any, Any]]) -> Job:
        tasks: list[asyncio.Task[None]] = []

        def cancel() -> None:
            # Two turns later: the task has been made by then, and has begun, so that its end is seen.
            self.loop.call_soon_threadsafe(lambda: self.loop.call_soon(tasks[0].cancel))

        async def run() -> None:
            try:
                job.future.set_result(await work(job))
            except BaseException as error:
                job.future.set_exception(error)

        job = Job(cancel)
        self.loop.call_soon_threadsafe(lambda: tasks.append(self.loop.create_task(run())))
        return job


Api = Threads | Tasks


def make_api(side: str) -> Api:
    return Threads() if side == Threads.side else Tasks()
