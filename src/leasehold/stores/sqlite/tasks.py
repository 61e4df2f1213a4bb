"""The SQLite store's driver for asyncio: operations run in one worker thread, the loop gets wake-ups and deaths."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from ...core import clock
from ...core.protocol import Busy, Steps, T
from ...errors import StoreUnavailable
from ..common.doorbell import Descriptor
from .store import Database


class SqliteTasks:
    """One worker thread, so that operations run in the order of their calls, also after a cancellation."""

    def __init__(self, path: str, namespace: str) -> None:
        self.database = Database(path, namespace)
        self._reset()

    def _reset(self) -> None:
        self._worker: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: dict[str, dict[str, Descriptor]] = {}

    @property
    def on_ring(self) -> Callable[[str], None]:
        return self.database.on_ring

    @on_ring.setter
    def on_ring(self, callback: Callable[[str], None]) -> None:
        self.database.on_ring = callback

    async def run(self, steps: Steps[T], limit: float) -> T:
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="leasehold-sqlite")
        # The limit counts from now, not from when the worker begins.
        call = self._worker.submit(self.database.run_until, steps, clock.now() + limit)
        future = asyncio.wrap_future(call)
        try:
            await asyncio.wait((future,), timeout=limit)
        except asyncio.CancelledError:
            future.cancel()
            raise
        if not future.done() and call.cancel():  # not begun; a call that has begun keeps its own limit
            raise StoreUnavailable(f"{self.database.path}: timed out waiting for other calls of this process")
        return await future

    def at_rest(self) -> AbstractContextManager[None]:
        return self.database.at_rest()

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        """Watch the sessions of the holders for this attempt, if it is the next waiter. Whether push works."""
        bell = self.database.bell
        if bell.fd < 0:
            return False
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            loop.add_reader(bell.fd, self._read)
        self._watch(attempt, tuple(busy.watch) if busy is not None and not busy.place else ())
        return busy is None or bell.can_be_rung()

    def forget(self, attempt: str) -> None:
        self._watch(attempt, ())

    def _read(self) -> None:
        for attempt in self.database.bell.read():
            self.on_ring(attempt)

    def _watch(self, attempt: str, sessions: tuple[str, ...]) -> None:
        old = self._watched.pop(attempt, {})
        new = {}
        for session in sessions:
            kept = old.pop(session, None)
            watch = kept or self.database.bell.watch(session)
            if watch is None:  # died since the store answered
                self.on_ring(attempt)
                continue
            new[session] = watch
            if kept is None and watch.fd >= 0 and self._loop is not None:
                self._loop.add_reader(watch.fd, self._died, attempt, watch)
        for watch in old.values():
            self._unwatch(watch)
        if new:
            self._watched[attempt] = new

    def _died(self, attempt: str, watch: Descriptor) -> None:
        self._unwatch(watch)
        self.on_ring(attempt)

    def _unwatch(self, watch: Descriptor) -> None:
        if watch.fd >= 0 and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(watch.fd)
        watch.close()

    async def close(self) -> None:
        for attempt in list(self._watched):
            self.forget(attempt)
        if self._loop is not None and self.database.bell.fd >= 0:
            self._loop.remove_reader(self.database.bell.fd)
        worker, self._worker = self._worker, None
        if worker is not None:
            await asyncio.get_running_loop().run_in_executor(worker, self.database.disconnect)
            worker.shutdown(wait=False)
        else:
            self.database.disconnect()

    def new_loop(self) -> None:
        for attempt in list(self._watched):
            self.forget(attempt)
        self._loop = None

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        return self.database.run(steps, limit)

    def close_at_exit(self) -> None:
        self.database.disconnect()

    def after_fork(self) -> None:
        for watched in self._watched.values():
            for watch in watched.values():
                watch.close()
        self._reset()
        self.database.after_fork()
