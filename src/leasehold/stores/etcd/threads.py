"""The driver for threads: calls over a link, and one listener thread for all waiters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from ... import clock
from ...bells import ThreadBell
from ...errors import StoreError, StoreUnavailable
from ...log import WARNING, log
from ...protocol import Busy, Steps, T, run_steps
from .errors import DRIVER_ERRORS, Refused, translate
from .store import EtcdStore
from .watches import Ring, Watches
from .wire import Call

HEARTBEAT = 2.5
"""A listener that has heard nothing for so long asks whether the server is still there."""
CONNECT_LIMIT = 2.0
FAREWELL = 1.0
PAUSES = (0.05, 1.0)
"""How soon a listener that failed tries again, growing from the first to the last."""


def next_pause(pause: float, began: float) -> float:
    """One that has heard nothing but refusals since ``began`` is not to try in a hot loop."""
    return PAUSES[0] if clock.now() - began > HEARTBEAT else min(pause * 2, PAUSES[1])


class Link(Protocol):
    """Where calls go: our own connections, or a channel that the user has given us."""

    def send(self, call: Call, limit: float) -> list[bytes]: ...

    def ear(self, limit: float) -> Any: ...

    def blame(self, host: Any) -> None: ...

    def logged_out(self, token: bytes) -> None: ...

    def close(self) -> None: ...

    def after_fork(self) -> None: ...


class EtcdThreads:
    def __init__(self, store: EtcdStore, link: Link, where: str) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._store = store
        self._link = link
        self._where = where
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.RLock()  # a signal's handler may acquire where it has interrupted an acquire
        self._thread: threading.Thread | None = None
        self._ear: Any = None
        self._watches = Watches(self._store)
        self._waiting: set[str] = set()
        self._halfway = False
        """Whether a thread is at the watches, or was interrupted there: then the listener begins anew with them."""
        self._timers: list[threading.Timer] = []
        self._closed = False
        self._end = ThreadBell()

    def after_fork(self) -> None:
        self._store.reset()
        self._reset()
        self._link.after_fork()

    def run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit

        def answer(call: Call) -> list[bytes]:
            left = ends - clock.now()
            if left <= 0:
                raise TimeoutError(f"not done within {limit:.3g} s")
            return self._link.send(call, left * call.share)

        try:
            result = run_steps(steps, answer)
            if self._store.sessions.rests:
                self._end_rests()
            return result
        except StoreError:
            raise
        except DRIVER_ERRORS as error:
            raise translate(error, self._where) from error
        finally:
            steps.close()  # at once, also when a KeyboardInterrupt went past it

    def _end_rests(self) -> None:
        while rests := self._store.sessions.rests:
            ends, lease = rests.pop()
            timer = threading.Timer(max(0.0, ends - clock.now()), self._end_rest, (lease,))
            timer.name, timer.daemon = "leasehold-etcd-rest", True
            self._timers = [each for each in self._timers if each.is_alive()] + [timer]
            try:
                timer.start()
            except RuntimeError:
                pass  # no thread can be started: then it runs out

    def _end_rest(self, lease: int) -> None:
        try:
            self.run(self._store.end_rest(lease), CONNECT_LIMIT)
        except StoreError:
            pass  # it runs out

    # Listening.

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        if attempt:
            self._waiting.add(attempt)
        if self._thread is None or not self._thread.is_alive():
            self._start()
        ear = self._ear
        if ear is None:
            return False
        if busy is None:
            return True
        try:
            with self._mutex:
                if self._ear is not ear or self._halfway:
                    return False
                self._halfway = True
                rings, messages = self._watches.add(attempt, busy.watch)
                self._ring(rings)
                if messages:
                    ear.send(messages)
                self._halfway = False
        except BaseException as error:  # also one that a signal's handler raises
            ear.wake()  # the listener is to begin anew
            if isinstance(error, DRIVER_ERRORS):
                return False
            raise
        return True

    def _start(self) -> None:
        """Whoever is interrupted here may have started a thread or not: one that is not noted ends by itself."""
        with self._mutex:
            if not self._closed and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._listen, name="leasehold-etcd", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the process can have no more threads: waiters poll, the next one tries again
                    self._thread = None

    def forget(self, attempt: str) -> None:
        self._waiting.discard(attempt)
        ear = self._ear
        try:
            with self._mutex:
                if not self._halfway:
                    self._halfway = True
                    self._watches.drop(attempt)  # the server is told with what is sent next
                    self._halfway = False
        except BaseException:
            if ear is not None:
                ear.wake()
            raise

    def _listen(self) -> None:
        pause = PAUSES[0]
        while not self._closed and self._thread is threading.current_thread():
            began = clock.now()
            try:
                ear = self._link.ear(CONNECT_LIMIT)
                try:
                    self._begin(ear)
                    self._hear(ear)
                except (StoreUnavailable, *DRIVER_ERRORS) as error:
                    self._link.blame(ear.host)
                    if isinstance(error, Refused) and error.token_is_old:
                        self._link.logged_out(ear.token)
                    raise
                finally:
                    with self._mutex:
                        self._ear = None
                    ear.close()
            except (StoreUnavailable, *DRIVER_ERRORS) as error:
                if not self._closed:
                    log(WARNING, "%s: not listening for wake-ups, polling instead: %s", self._where, error)
            except Exception as error:
                log(WARNING, "%s: the listener stumbled and goes on: %s", self._where, error, exc=error)
            if not self._closed:
                self._ring_all()  # from now on they have to poll
            self._end.wait(pause)
            pause = next_pause(pause, began)

    def _begin(self, ear: Any) -> None:
        with self._mutex:
            ear.send([self._watches.begin()])
            self._halfway = False
        while not self._watches.listening:
            told = ear.read(CONNECT_LIMIT)
            with self._mutex:
                if messages := self._watches.heard(told, asked=True)[1]:
                    ear.send(messages)
        with self._mutex:
            self._ear = ear
        self._ring_all()  # what happened before we listened

    def _hear(self, ear: Any) -> None:
        asked = False
        while not self._closed:
            told = ear.read(HEARTBEAT)
            with self._mutex:
                if self._halfway:
                    raise ConnectionError("a thread was interrupted while it asked for a watch")
                rings, messages = self._watches.heard(told, asked)
                if messages:
                    ear.send(messages)
                self._ring(rings)
            asked = told is None

    def _ring(self, rings: list[Ring]) -> None:
        """With the mutex held: whoever is called twice hears what was found last as the last."""
        for ring in rings:
            self.on_ring(*ring)

    def _ring_all(self) -> None:
        """Whoever waits is to ask again, and what is held is to be looked at."""
        for attempt in (*self._waiting, ""):
            self.on_ring(attempt)

    def close(self) -> None:
        self._closed = True
        self._end.ring()
        for timer in self._timers:
            timer.cancel()
        with self._mutex:
            thread, ear = self._thread, self._ear
        if ear is not None:
            ear.wake()
        try:
            self.run(self._store.farewell(), FAREWELL)
        except StoreError:
            pass  # what is left goes when its lease runs out
        self._link.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)
