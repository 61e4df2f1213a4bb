"""Runs the main thread's calls to a driver in a helper thread.

Signal handlers run in the main thread, and an exception from one can come between any two of its instructions. pymongo
and kazoo guard their pools with conditions and counters written in Python: such an exception would leave these locked
or miscounted for good, and renewals would fail. So the main thread runs none of their code, and none that holds a mutex
which a renewal needs: it hands over a call and waits for it on a C-level lock. Their code cannot be entered twice
either: see :mod:`leasehold.stores.common.reentry`.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from inspect import getgeneratorlocals
from queue import SimpleQueue
from typing import Any, TypeVar

from ...core import clock
from ...core.protocol import Ask, Steps
from ...errors import StoreUnavailable
from ...runtime.thread_start import start_thread
from .reentry import inside, is_inside, refused

T = TypeVar("T")
CLOSING = 5.0


def name_of(steps: Steps[Any]) -> str | None:
    """The name that an operation of the store is about, read from its arguments.

    None for a listing, and for renewals, which need no order: a renewal never revives a lease that has ended."""
    told = getgeneratorlocals(steps)
    ask = told.get("ask")
    name = ask.name if isinstance(ask, Ask) else told.get("name")
    return name if isinstance(name, str) else None


class _Call:
    __slots__ = ("_begun", "after", "done", "ends", "error", "left", "name", "over", "result", "work")

    def __init__(self, work: Callable[[], Any], name: str | None, ends: float, after: Iterable[_Call] = ()) -> None:
        self.work, self.name, self.ends = work, name, ends
        self.after = tuple(after)
        """Abandoned calls that must end before this one begins."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = self.left = False
        self.over = _thread.allocate_lock()
        self.over.acquire()
        self._begun = _thread.allocate_lock()

    def claim(self) -> bool:
        """True for the first caller: the thread that makes the call, or the one that withdraws it."""
        return self._begun.acquire(False)

    def finish(self) -> None:
        """Note that the call has ended, or was withdrawn."""
        self.done = True
        with suppress(RuntimeError):  # noted already
            self.over.release()

    def wait(self, ends: float) -> bool:
        """Wait for the end of the call, in a thread that no signal interrupts. True if it has ended by ``ends``."""
        if self.left and self.claim():
            self.finish()  # it may not be in the queue, and then nobody else would finish it
        if self.done:
            return True
        if self.over.acquire(timeout=max(0.0, ends - clock.now())):
            self.over.release()
        return self.done


class MainThread:
    """Makes the main thread's calls in helper threads, and calls of other threads in these threads themselves.

    There is one helper thread as long as none hangs. A call that finds none idle starts another."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._mutex = threading.Lock()  # of the helper threads: the main thread never takes it
        self._idle = 0
        self._ended = False
        self._under_way: set[_Call] = set()

    def run(self, function: Callable[[Steps[T], float], T], steps: Steps[T], limit: float) -> T:
        """``function(steps, limit)``. An abandoned call ends before a later call about the same name begins."""
        name, ends = name_of(steps), clock.now() + limit
        if _is_main():
            after = [call for call in list(self._under_way) if call.name == name is not None]
            result: T = self._hand_over(_Call(lambda: function(steps, self._time_left(ends)), name, ends, after))
            return result
        if is_inside():
            raise refused(self._where)
        if self._under_way:
            for call in list(self._under_way):
                if call.left and call.name == name is not None and not call.wait(ends):
                    raise self._busy()
            limit = self._time_left(ends)
        with inside():
            return function(steps, limit)

    def do(self, function: Callable[[], T], limit: float = CLOSING) -> T:
        """Run a function that is not about a name."""
        if _is_main():
            result: T = self._hand_over(_Call(function, None, clock.now() + limit))
            return result
        with inside():
            return function()

    def soon(self, function: Callable[[], object]) -> None:
        """Run a function that is not about a name, without waiting for it."""
        call = _Call(function, None, 0.0)
        if not _is_main() or (not self._enqueue(call) and call.claim()):
            with inside():
                function()

    def end(self) -> None:
        """End the idle helper thread, and any that has yet to begin. The next call starts another."""
        self._ended = True
        self._calls.put(None)

    def _hand_over(self, call: _Call) -> Any:
        after = call.after
        try:
            self._under_way.add(call)
            if not self._enqueue(call) and call.claim():
                self._under_way.discard(call)
                return call.work()
            if not call.over.acquire(timeout=max(0.0, call.ends - clock.now())) and call.claim():
                raise self._busy() if any(not earlier.done for earlier in after) else self._late()
            if not call.done:
                call.over.acquire()  # it has begun, and keeps its own limit
        except BaseException:
            call.left = True
            raise
        try:
            if call.error is not None:
                raise call.error
            return call.result
        finally:
            del call  # the error's traceback holds this frame

    def _enqueue(self, call: _Call) -> bool:
        """False if no thread can be started, for example because the interpreter exits."""
        self._ended = False
        self._calls.put(call)
        if not self._idle:
            try:
                start_thread("leasehold-main", self._work)
            except RuntimeError:
                return False
        return True

    def _time_left(self, ends: float) -> float:
        left = ends - clock.now()
        if left <= 0:
            raise self._late()
        return left

    def _busy(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._where}: an interrupted call is still in progress")

    def _late(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._where}: timed out before the call was sent")

    # The helper threads.

    def _work(self) -> None:
        with inside():
            self._make_calls()

    def _make_calls(self) -> None:
        while (call := self._next()) is not None:
            try:
                for earlier in call.after:
                    if not earlier.wait(call.ends):
                        raise self._busy()
                if not call.left and call.claim():
                    call.result = call.work()
            except BaseException as error:
                call.error = error
            call.after = ()
            call.finish()
            self._under_way.discard(call)
            del call  # an idle thread keeps no Locks alive

    def _next(self) -> _Call | None:
        with self._mutex:
            if (self._idle or self._ended) and self._calls.empty():
                return None  # one idle thread is enough, and none is after the end
            self._idle += 1
        try:
            while (call := self._calls.get()) is None and not self._calls.empty():
                pass  # end(), but calls have come since
            return call
        finally:
            with self._mutex:
                self._idle -= 1
                if not self._idle and not self._calls.empty():  # a call came while this thread seemed idle
                    with suppress(RuntimeError):  # no thread can be started: this one makes the call later
                        start_thread("leasehold-main", self._work)


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident
