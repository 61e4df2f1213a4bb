"""``drain_on_signals``: SIGTERM and SIGINT drain every ``Locks`` that was registered, once for the whole process.

A signal handler runs in the main thread between two instructions, whatever mutexes that thread holds. So the handler
only notes the signal, wakes a thread that was started before, and calls the previous handler. The previous handler
decides how the process ends: uvicorn and gunicorn begin their own shutdown beside the drain. If it raises, as
``sys.exit`` does, the error is raised again when the drain is over. If there was none, SystemExit(0) is raised then.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from ..core import timing
from ..core.drain import LOOK, drain
from ..core.log import ERROR, INFO, log
from ..core.registry import Registry
from ..errors import ShuttingDown
from .thread_start import Life, start_thread
from .wakeups import ThreadBell

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from types import FrameType

    from ..tasks.runner import TaskRegistry
    from ..threads.runner import ThreadRegistry

SIGNALS = (signal.SIGTERM, signal.SIGINT)
HURRY, GIVE_UP = 2, 3
"""The second signal ends the grace period; the third does what it would do without ``drain_on_signals``."""
TOGETHER = 1.0
"""Signals within this time are one request to stop: systemd signals every process of a service, and a parent process
(``leasehold run``, uvicorn with workers) passes the signal on."""

AGAIN = 0.2
"""How often a drained process signals itself until its main thread has noticed: a signal between Python's last check
for signals and a blocking system call does not interrupt that call."""


class Drain:
    """One registered ``Locks``."""

    loop: AbstractEventLoop | None = None

    def __init__(self, core: Registry, grace: timing.Duration) -> None:
        self.core = core
        self.grace = timing.seconds(grace, "grace", zero=True)
        self.begun = False
        self.done = threading.Event()

    def begin(self) -> None:
        """Start the drain in the background. It sets ``done`` at its end, also after an error."""
        raise NotImplementedError

    def is_stuck(self) -> bool:
        """Whether its event loop has ended, so that the drain cannot finish."""
        return self.loop is not None and not self.loop.is_running()


class ThreadDrain(Drain):
    core: ThreadRegistry

    def begin(self) -> None:
        start_thread("leasehold-drain", self._drain)

    def _drain(self) -> None:
        try:
            self.core.drive(drain(self.core, self.grace))
        except ShuttingDown:
            pass  # closed already
        finally:
            self.done.set()


class TaskDrain(Drain):
    core: TaskRegistry

    def __init__(self, core: TaskRegistry, grace: timing.Duration) -> None:
        super().__init__(core, grace)
        self.loop = core.bind()

    def begin(self) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(lambda: self.core.spawn(self._drain()))

    async def _drain(self) -> None:
        try:
            await self.core.drive(drain(self.core, self.grace))
        except ShuttingDown:
            pass
        finally:
            self.done.set()


class _Shutdown:
    def __init__(self) -> None:
        self.before: dict[int, Any] = {}
        self.taking_part: list[Drain] = []
        self.mutex = threading.Lock()  # for taking_part and the end of the drain; the handler must not take it
        self.begin_anew()

    def begin_anew(self) -> None:
        """Reset the state: at the start, in a forked child, and in a process that continues after a drain."""
        self.process = os.getpid()
        self.early: int | None = None  # a signal to a forked child before its state was reset
        self.come: list[signal.Signals] = []  # the signals that count: see TOGETHER
        self.came = 0.0  # when the last of them came
        self.called = self.ended = False
        self.called_at = float("-inf")  # when this process last signalled itself
        self.ending: BaseException | None = None
        self.over = threading.Event()
        self.bell = ThreadBell()
        self.thread: Life | None = None
        for each in self.taking_part:
            each.begun, each.done = False, threading.Event()

    def after_fork(self) -> None:
        """In the child: drop what belongs to the parent's event loops, which do not run here. If nothing is left,
        restore the previous signal handlers."""
        self.taking_part = [each for each in self.taking_part if each.loop is None]
        self.mutex = threading.Lock()
        early = self.early
        self.begin_anew()
        if not self.taking_part:
            self._restore()
        if early is not None:
            signal.raise_signal(early)

    def add(self, new: Drain) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("drain_on_signals() must be called in the main thread: only it can handle signals")
        with self.mutex:
            if self.over.is_set():
                self._end()  # raise the pending error, if any, before the reset forgets it
                self.taking_part = []  # before the reset, so that the ``done`` of drained ones stays set
                self.begin_anew()
            same = next((each for each in self.taking_part if each.core is new.core), None)
            if same is not None:  # a signal may just have started it, so it is updated and not replaced
                same.grace, same.loop = new.grace, new.loop
            else:
                left = [each for each in self.taking_part if not each.core.finished]
                self.taking_part = [*left, new]
        self._start()
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before not in (signal.SIG_IGN, self.note):  # an ignored signal stays ignored, as under nohup
                self.before[number] = before
                signal.signal(number, self.note)

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.process != os.getpid():
            self.early = number
            return
        now = time.monotonic()
        if self.called or now < self.called_at + TOGETHER:  # sent by this process itself: the drain is over
            self.called = False
            self._end()
            return
        if not self.come or now >= self.came + TOGETHER:
            if self.ended or len(self.come) + 1 >= GIVE_UP or self._nobody_is_left():
                self._do_without_us(number, frame)
                return
            self.come.append(signal.Signals(number))
            self.came = now
            for each in self.taking_part:
                if not each.core.finished:
                    each.core.signalled = each
                    each.core.hurried = len(self.come) >= HURRY
            self._start()  # needed in a forked child; otherwise the thread runs already
            self.bell.ring()
        before = self.before[number]
        try:
            if _is_default(before):
                raise SystemExit(0)
            before(number, frame)
        except BaseException as error:  # it ends the process: raise the error again when the drain is over
            if not self.ended:
                self.ending = self.ending or error
        if self.over.is_set():
            self._end()

    def _nobody_is_left(self) -> bool:
        """Whether all were closed before a signal. (``close`` may run in any thread, so it cannot restore handlers.)"""
        return not self.come and all(each.core.finished for each in self.taking_part)

    def _do_without_us(self, number: int, frame: FrameType | None) -> None:
        """Restore the previous handlers, and do what the signal would have done without this one."""
        self._restore()
        before = self.before[number]
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)  # also if another handler was installed later, and called this one
            os.kill(os.getpid(), number)

    def _start(self) -> None:
        if self.thread is None:
            self.thread = start_thread("leasehold-signals", self._drain)

    def _drain(self) -> None:
        """The thread: wait for the first signal, drain all, and then raise the pending error in the main thread."""
        while not self.come:
            self.bell.wait(None)
        log(INFO, "%s: draining", self.come[0].name, event="signal")
        while left := self._not_done():
            for each in left:
                if not each.begun:
                    self._begin(each)
            left[0].done.wait(LOOK)  # not longer: another may have been added
        main = threading.main_thread()
        if self.ending is None or not main.is_alive():
            return
        for each in self.taking_part:
            if each.loop is not None and each.loop.is_running():
                try:
                    each.loop.call_soon_threadsafe(self._end_loop)  # in a callback: no task gets the error
                except RuntimeError:
                    pass  # the loop was just closed: the main thread is ending
                return
        self.called = True
        while self.called and main.is_alive():
            self.called_at = time.monotonic()
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(main.ident or 0, self.come[0])  # interrupts a blocking system call
            else:
                import _thread

                _thread.interrupt_main(self.come[0])
            time.sleep(AGAIN)

    def _not_done(self) -> list[Drain]:
        with self.mutex:
            left = [each for each in self.taking_part if not each.done.is_set()]
            if not left:
                self.over.set()
            return left

    def _begin(self, each: Drain) -> None:
        each.begun = True
        if each.core.finished:
            each.done.set()
            return
        each.core.signalled = each  # it may have been added after the signal
        if len(self.come) >= HURRY:
            each.core.hurried = True
        try:
            each.begin()
        except Exception as error:  # no loop or no new threads, because the interpreter exits, which also releases
            log(ERROR, "cannot start a drain: %s", error, exc=error)
            each.done.set()

    def _end(self) -> None:
        ending, self.ending = self.ending, None
        if ending is not None:
            self.ended = True
            raise ending

    def _end_loop(self) -> None:
        """The same in a callback of the loop, which only SystemExit and KeyboardInterrupt can end."""
        try:
            self._end()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            log(ERROR, "drained; the process exits because a signal handler raised an error", exc=error)
            raise SystemExit(1) from error  # the exit status of an uncaught error

    def _restore(self) -> None:
        for number, before in self.before.items():
            if signal.getsignal(number) == self.note:
                signal.signal(number, signal.SIG_DFL if before is None else before)  # None: not installed by Python

    def wait(self) -> None:
        """At the interpreter's exit: wait for the drain that a signal has started."""
        while self.come and self.thread is not None and not self.over.wait(0.1):
            for each in self.taking_part:
                if each.is_stuck():
                    each.done.set()


_shutdown = _Shutdown()
add = _shutdown.add


def _is_default(handler: Any) -> bool:
    """Whether the program has installed no handler. Handlers of Python itself and of ``asyncio.run`` do not count."""
    if handler in (None, signal.SIG_DFL, signal.default_int_handler):
        return True
    function = getattr(handler, "func", handler)  # asyncio.run has a functools.partial of a method
    return str(getattr(function, "__module__", "")) == "asyncio.runners"


atexit.register(_shutdown.wait)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shutdown.after_fork)
