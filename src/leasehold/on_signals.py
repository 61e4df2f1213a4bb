"""``drain_on_signals``: SIGTERM and SIGINT drain every ``Locks`` that has asked for it, once for the whole process.

A handler runs in the main thread between two instructions, whatever mutexes that thread holds. So it only notes the
signal, rings a thread that was started beforehand, and calls the handler that was there before. How the process ends is
that one's business: uvicorn and gunicorn begin their own shutdown, beside ours. If it raises, as one does that calls
``sys.exit``, that has to wait until the drain is over. If there was none, SystemExit(0) ends the main thread then.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time

from . import policy
from .bells import ThreadBell
from .core import Core
from .drain import LOOK, drain
from .errors import ShuttingDown
from .log import ERROR, INFO, log
from .starting import Life, start_thread
from .typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from types import FrameType

    from .tasks import TaskCore
    from .threads import ThreadCore

SIGNALS = (signal.SIGTERM, signal.SIGINT)
HURRY, GIVE_UP = 2, 3
"""The second signal ends the grace; the third does what it would have done without us."""
TOGETHER = 1.0
"""What comes so soon after a signal is the same request to stop: systemd sends it to every process of a service, and a
parent among them (``leasehold run``, uvicorn with workers) passes it on."""

AGAIN = 0.2
"""How often a drained process signals itself until its main thread has noticed: a signal that comes between Python's
last check for signals and the system call that sleeps does not interrupt that call."""


class Drain:
    """One ``Locks`` that takes part."""

    loop: AbstractEventLoop | None = None

    def __init__(self, core: Core, grace: float) -> None:
        self.core = core
        self.grace = policy.seconds(grace, "grace", zero=True)
        self.begun = False
        self.done = threading.Event()

    def begin(self) -> None:
        """Start to drain, not in this thread; set ``done`` in the end, however it ends."""
        raise NotImplementedError

    def is_stuck(self) -> bool:
        """Its event loop has ended, and the drain with it."""
        return self.loop is not None and not self.loop.is_running()


class ThreadDrain(Drain):
    core: ThreadCore

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
    core: TaskCore

    def __init__(self, core: TaskCore, grace: float) -> None:
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
        self.mutex = threading.Lock()  # whoever takes part before a drain is over is drained; not for the handler
        self.begin_anew()

    def begin_anew(self) -> None:
        """At first, and in a process that has outlived its drain."""
        self.process = os.getpid()
        self.early: int | None = None  # a signal that came to a child before it had begun anew
        self.come: list[signal.Signals] = []  # without those that came together with the one before
        self.came = 0.0  # when the last of them did
        self.called = self.ended = False
        self.called_at = float("-inf")  # when we last sent ourselves a signal
        self.ending: BaseException | None = None
        self.over = threading.Event()
        self.bell = ThreadBell()
        self.thread: Life | None = None
        for each in self.taking_part:
            each.begun, each.done = False, threading.Event()

    def after_fork(self) -> None:
        """The parent's event loops do not run in the child, so what is to be drained in one would never be. If nothing
        is left that takes part, signals do in the child what they would do without us."""
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
            raise ValueError("drain_on_signals() must be called in the main thread: only that can handle signals")
        with self.mutex:
            if self.over.is_set():
                self._end()  # if that is still to come, here it is: or it would be forgotten with the rest
                self.taking_part = []  # before: whoever closes a drained one must still see that it is done
                self.begin_anew()
            same = next((each for each in self.taking_part if each.core is new.core), None)
            if same is not None:  # one that a signal may just have begun: it cannot be exchanged for another
                same.grace, same.loop = new.grace, new.loop
            else:
                left = [each for each in self.taking_part if not each.core.finished]
                self.taking_part = [*left, new]
        self._start()
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before not in (signal.SIG_IGN, self.note):  # what our caller ignores stays ignored, as under nohup
                self.before[number] = before
                signal.signal(number, self.note)

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        if self.process != os.getpid():
            self.early = number
            return
        now = time.monotonic()
        if self.called or now < self.called_at + TOGETHER:  # by ourselves: drained
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
            self._start()  # in a forked child; else it runs already
            self.bell.ring()
        before = self.before[number]
        try:
            if _is_default(before):
                raise SystemExit(0)
            before(number, frame)
        except BaseException as error:  # it wants to end the process: not before the work is done
            if not self.ended:
                self.ending = self.ending or error
        if self.over.is_set():
            self._end()

    def _nobody_is_left(self) -> bool:
        """All were closed before a signal came. ``close`` cannot take the handlers back: it may run in any thread."""
        return not self.come and all(each.core.finished for each in self.taking_part)

    def _do_without_us(self, number: int, frame: FrameType | None) -> None:
        """What the signal would have done, now and from now on."""
        self._restore()
        before = self.before[number]
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)  # also when somebody's handler stands before ours, and calls it
            os.kill(os.getpid(), number)

    def _start(self) -> None:
        if self.thread is None:
            self.thread = start_thread("leasehold-signals", self._drain)

    def _drain(self) -> None:
        """The thread: wait for the first signal, drain all, and if the process is to end by us, end it."""
        while not self.come:
            self.bell.wait(None)
        log(INFO, "%s: draining", self.come[0].name, event="signal")
        while left := self._not_done():
            for each in left:
                if not each.begun:
                    self._begin(each)
            left[0].done.wait(LOOK)  # no longer: another may have come
        main = threading.main_thread()
        if self.ending is None or not main.is_alive():
            return
        for each in self.taking_part:
            if each.loop is not None and each.loop.is_running():
                try:
                    each.loop.call_soon_threadsafe(self._end_loop)  # between two tasks, not in one
                except RuntimeError:
                    pass  # it has just been closed: main is ending
                return
        self.called = True
        while self.called and main.is_alive():
            self.called_at = time.monotonic()
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(main.ident or 0, self.come[0])  # ends whatever it sleeps in
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
        each.core.signalled = each  # it may have come after the signal
        if len(self.come) >= HURRY:
            each.core.hurried = True
        try:
            each.begin()
        except Exception as error:  # no loop, or no new threads, because the interpreter exits: that gives back too
            log(ERROR, "a drain could not begin", exc=error)
            each.done.set()

    def _end(self) -> None:
        ending, self.ending = self.ending, None
        if ending is not None:
            self.ended = True
            raise ending

    def _end_loop(self) -> None:
        """The same in a callback: nothing but these two that it raises ends a loop."""
        try:
            self._end()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            log(ERROR, "drained; the process ends because a signal handler has raised", exc=error)
            raise SystemExit(1) from error  # the status with which the error itself would have ended it

    def _restore(self) -> None:
        for number, before in self.before.items():
            if signal.getsignal(number) == self.note:
                signal.signal(number, signal.SIG_DFL if before is None else before)  # None: set by other than Python

    def wait(self) -> None:
        """At the interpreter's exit: not before what a signal has begun is over."""
        while self.come and self.thread is not None and not self.over.wait(0.1):
            for each in self.taking_part:
                if each.is_stuck():
                    each.done.set()


_shutdown = _Shutdown()
add = _shutdown.add


def _is_default(handler: Any) -> bool:
    """Whether nobody has asked for anything: what Python itself and ``asyncio.run`` install counts as nobody's."""
    if handler in (None, signal.SIG_DFL, signal.default_int_handler):
        return True
    function = getattr(handler, "func", handler)  # asyncio.run has a functools.partial of a method
    return str(getattr(function, "__module__", "")) == "asyncio.runners"


atexit.register(_shutdown.wait)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shutdown.after_fork)
