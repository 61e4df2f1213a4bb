"""What the main thread asks of a driver, done in a thread of ours.

Signal handlers run in the main thread, and an exception out of one may come between any two of its instructions.
pymongo and kazoo guard their pools with conditions and counters written in Python: such an exception leaves them locked
or miscounted for good, and renewals fail with them. So the main thread runs none of their code, nor ours that holds a
mutex which theirs or a renewal needs: it hands over a call and waits for it on a C-level lock.
Nor can their code be entered twice: see :mod:`leasehold.stores.reentry`.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from inspect import getgeneratorlocals
from queue import SimpleQueue
from typing import Any, TypeVar

from .. import clock
from ..errors import StoreUnavailable
from ..protocol import Ask, Steps
from .reentry import inside, is_inside, refused

T = TypeVar("T")
CLOSING = 5.0


def name_of(steps: Steps[Any]) -> str | None:
    """The one name that an operation of the store is about, read from its arguments.

    None for a listing, and for renewals: a lease that has ended is not renewed, however late or early one comes."""
    told = getgeneratorlocals(steps)
    ask = told.get("ask")
    name = ask.name if isinstance(ask, Ask) else told.get("name")
    return name if isinstance(name, str) else None


class _Call:
    __slots__ = ("_begun", "done", "error", "name", "over", "result", "work")

    def __init__(self, work: Callable[[], Any], name: str | None) -> None:
        self.work, self.name = work, name
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.over = _thread.allocate_lock()
        self.over.acquire()
        self._begun = _thread.allocate_lock()

    def claim(self) -> bool:
        """True for the first who asks: the thread that is to make the call, or the caller, who withdraws it."""
        return self._begun.acquire(False)

    def make(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error
        self.done = True
        self.over.release()

    def wait(self, seconds: float) -> bool:
        """For threads that a signal cannot interrupt. True when the call is over."""
        if not self.done and self.over.acquire(timeout=max(0.0, seconds)):
            self.over.release()
        return self.done


class MainThread:
    """Makes calls of the main thread one after the other, and those of other threads where they are."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._mutex = threading.RLock()  # a signal handler may make a call while the main thread has it
        self._working = False
        self._left: set[_Call] = set()
        """Under way, though an exception has ended the wait for them."""

    def run(self, function: Callable[[Steps[T], float], T], steps: Steps[T], limit: float) -> T:
        """``function(steps, limit)``. A call that was left under way happens before a later one about its name."""
        ends = clock.now() + limit
        if not _is_main():
            if is_inside():
                raise refused(self._where)
            if self._left:
                self._let_finish(name_of(steps), ends)
                limit = ends - clock.now()
            with inside():
                return function(steps, limit)
        return self._hand_over(lambda: function(steps, self._time_left(ends)), name_of(steps), limit)

    def do(self, function: Callable[[], T], limit: float = CLOSING) -> T:
        """The same for what is not about a name."""
        if _is_main():
            return self._hand_over(function, None, limit)
        with inside():
            return function()

    def end(self) -> None:
        """The thread ends when it has made the calls that are there; another begins with the next call."""
        self._calls.put(None)

    def _hand_over(self, work: Callable[[], T], name: str | None, limit: float) -> T:
        call = _Call(work, name)
        try:
            try:
                with self._mutex:
                    self._calls.put(call)
                    if not self._working:
                        _thread.start_new_thread(self._begin, ())  # Thread.start() can be interrupted half-way
            except RuntimeError:  # no thread can be started, as when the interpreter exits
                if call.claim():
                    return work()
            if not call.over.acquire(timeout=limit) and call.claim():
                raise self._busy()
            if not call.done:
                call.over.acquire()  # it is being made, and keeps its limit
        except BaseException:
            if not call.claim() and not call.done:
                self._left.add(call)
                if call.done:
                    self._left.discard(call)
            raise
        try:
            if call.error is not None:
                raise call.error
            result: T = call.result
            return result
        finally:
            del call  # the error's traceback holds this frame

    def _time_left(self, ends: float) -> float:
        left = ends - clock.now()
        if left <= 0:
            raise self._busy()
        return left

    def _busy(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._where}: a call that was interrupted is still under way")

    def _let_finish(self, name: str | None, ends: float) -> None:
        for call in list(self._left):
            if call.name == name is not None and not call.wait(ends - clock.now()):
                raise self._busy()

    # The thread.

    def _begin(self) -> None:
        """In a bare thread, which signals do not interrupt: now a proper one can be started."""
        with self._mutex:
            if self._working:
                return
            self._working = True
        try:
            threading.Thread(target=self._work, name="leasehold-main", daemon=True).start()
        except RuntimeError:
            self._work()

    def _work(self) -> None:
        with inside():
            self._make_calls()

    def _make_calls(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                with self._mutex:
                    if self._calls.empty():
                        self._working = False
                        return
            elif call.claim():
                call.make()
                self._left.discard(call)
            del call  # an idle thread keeps nobody's Locks alive


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident
