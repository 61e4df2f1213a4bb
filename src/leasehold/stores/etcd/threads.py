"""The driver for threads: calls over a transport, and one listener thread for all waiters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from ...core import clock
from ...core.log import WARNING, log
from ...core.protocol import Busy, Steps, T, run_steps
from ...errors import StoreError, StoreUnavailable
from ...runtime.thread_start import start_thread
from ...runtime.wakeups import ThreadBell
from .errors import DRIVER_ERRORS, GrpcError, translate
from .store import EtcdStore
from .subscriptions import Subscriptions, WakeUp
from .wire import EtcdCall

HEARTBEAT = 2.5
"""A listener that has heard nothing for so long asks whether the server is still there."""
CONNECT_LIMIT = 2.0
FAREWELL = 1.0
PAUSES = (0.05, 1.0)
"""How soon a listener that failed tries again, growing from the first to the last."""


def next_pause(pause: float, began: float) -> float:
    """One that has heard nothing but refusals since ``began`` is not to try in a hot loop."""
    return PAUSES[0] if clock.now() - began > HEARTBEAT else min(pause * 2, PAUSES[1])


class EtcdThreadTransport(Protocol):
    """Where calls go: our own connections, or a channel that the user has given us."""

    def send(self, call: EtcdCall, limit: float) -> list[bytes]: ...

    def watch(self, limit: float) -> Any: ...

    def blame(self, host: Any) -> None: ...

    def logged_out(self, token: bytes) -> None: ...

    def close(self) -> None: ...

    def after_fork(self) -> None: ...


class EtcdThreads:
    def __init__(self, store: EtcdStore, transport: EtcdThreadTransport, where: str) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._store = store
        self._transport = transport
        self._where = where
        self._reset()

    def _reset(self) -> None:
        self._listens = threading.Lock()
        """Whoever has it is the listener: it alone touches the watches, and the stream they are on."""
        self._start_again = 0.0
        self._stream: Any = None
        self._subscriptions = Subscriptions(self._store)
        self._wanted: SimpleQueue[tuple[str, Busy | None]] = SimpleQueue()
        """What the listener is to watch for an attempt; None: nothing any more."""
        self._waiting: set[str] = set()
        self._timers: list[threading.Timer] = []
        self._closed = False
        self._end = ThreadBell()

    def after_fork(self) -> None:
        self._store.reset()
        self._reset()
        self._transport.after_fork()

    def run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit

        def answer(call: EtcdCall) -> list[bytes]:
            left = ends - clock.now()
            if left <= 0:
                raise TimeoutError(f"timed out after {limit:.3g} s")
            return self._transport.send(call, left)

        try:
            result = run_steps(steps, answer)
            if self._store.session.rests:
                self._end_rests()
            return result
        except StoreError:
            raise
        except DRIVER_ERRORS as error:
            raise translate(error, self._where) from error
        finally:
            steps.close()  # at once, also when a KeyboardInterrupt went past it

    def _end_rests(self) -> None:
        while rests := self._store.session.rests:
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

    # Whoever waits holds no mutex here: a signal handler that interrupts the main thread may wait as long as it likes.

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        if attempt:
            self._waiting.add(attempt)
        if not self._listens.locked():
            self._start()
        stream = self._stream
        if stream is None:
            return False
        if busy is not None:
            self._wanted.put((attempt, busy))
            stream.wake()  # if it has failed meanwhile, all who wait are called
        return True

    def _start(self) -> None:
        """At most one a second, also when many begin to wait at once: whoever finds another listening ends."""
        now = clock.now()
        if now >= self._start_again and not self._closed:
            self._start_again = now + PAUSES[1]
            try:
                start_thread("leasehold-etcd", self._listen)
            except RuntimeError:
                pass  # the process can have no more threads: waiters poll

    def forget(self, attempt: str) -> None:
        self._waiting.discard(attempt)
        if self._stream is not None:
            self._wanted.put((attempt, None))  # the server is told with what is sent next

    def _listen(self) -> None:
        if self._listens.acquire(False):
            try:
                self._keep_listening()
            finally:
                self._listens.release()

    def _keep_listening(self) -> None:
        pause = PAUSES[0]
        while not self._closed:
            began = clock.now()
            try:
                stream = self._transport.watch(CONNECT_LIMIT)
                try:
                    self._begin(stream)
                    self._hear(stream)
                except (StoreUnavailable, *DRIVER_ERRORS) as error:
                    self._transport.blame(stream.host)
                    if isinstance(error, GrpcError) and error.token_is_old:
                        self._transport.logged_out(stream.token)
                    raise
                finally:
                    self._stream = None
                    stream.close()
            except (StoreUnavailable, *DRIVER_ERRORS) as error:
                if not self._closed:
                    log(WARNING, "%s: listener failed, waiters poll until it is back: %s", self._where, error)
            except Exception as error:
                log(WARNING, "%s: listener failed unexpectedly; retrying: %s", self._where, error, exc=error)
            if not self._closed:
                self._ring_all()  # from now on they have to poll
            self._end.wait(pause)
            pause = next_pause(pause, began)

    def _begin(self, stream: Any) -> None:
        stream.send([self._subscriptions.begin()])
        while not self._subscriptions.listening:
            if messages := self._subscriptions.heard(stream.read(CONNECT_LIMIT), asked=True)[1]:
                stream.send(messages)
        self._stream = stream
        self._ring_all()  # what happened before we listened

    def _hear(self, stream: Any) -> None:
        asked, since = False, clock.now()
        while not self._closed:
            self._want(stream)
            told = stream.read(max(0.0, since + HEARTBEAT - clock.now()))
            if told or told is None:  # else it was woken
                wake_ups, messages = self._subscriptions.heard(told, asked)
                if messages:
                    stream.send(messages)
                self._ring(wake_ups)
                asked, since = told is None, clock.now()

    def _want(self, stream: Any) -> None:
        """Have the server watch what is wanted by now."""
        messages: list[bytes] = []
        while not self._wanted.empty():
            attempt, busy = self._wanted.get()
            if busy is None or attempt not in self._waiting:  # it may have ended while the stream was away
                self._subscriptions.drop(attempt)
                continue
            wake_ups, unsaid = self._subscriptions.add(attempt, busy.watch)
            self._ring(wake_ups)
            messages += unsaid
        if messages:
            stream.send(messages)

    def _ring(self, wake_ups: list[WakeUp]) -> None:
        for ring in wake_ups:
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
        if (stream := self._stream) is not None:
            stream.wake()
        try:
            self.run(self._store.farewell(), FAREWELL)
        except StoreError:
            pass  # what is left goes when its lease runs out
        self._transport.close()
        self._listens.acquire(timeout=1.0)  # it has ended
