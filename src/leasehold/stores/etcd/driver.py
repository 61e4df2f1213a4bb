"""What the drivers for threads and for tasks share: calls, and the listener that wakes those who wait.

As in ``transport.py``, steps yield whatever waits as a function. The listener keeps one watch stream. It alone touches
the watches, and the stream that they are on; others tell it what they want.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from ...core import clock
from ...core.log import WARNING, log
from ...core.protocol import Busy, Steps, T
from ...errors import StoreError, StoreUnavailable
from .errors import DRIVER_ERRORS, translate
from .store import EtcdStore
from .subscriptions import Subscriptions, WakeUp
from .wire import EtcdCall, mapped

HEARTBEAT = 2.5
"""A listener that has heard nothing for so long asks whether the server is still there."""
CONNECT_LIMIT = 2.0
PAUSES = (0.05, 1.0)
"""How soon a listener that failed tries again, growing from the first to the last."""
_ABOUT = 0.001
"""A wait may end so much early."""


class EtcdCarrier(Protocol):
    """Where calls go: our own connections, or a channel that the user has given us. ``Any``: under asyncio it is to be
    awaited."""

    def send(self, call: EtcdCall, limit: float) -> Any:
        """The messages that the server answers. Raises GrpcError, OSError."""

    def watch(self, limit: float) -> Any:
        """A watch stream."""

    def close(self) -> Any: ...

    def after_fork(self) -> None: ...


class EtcdDriver:
    run: Callable[[Steps[Any], float], Any]
    _sleep: Callable[[float], Any]

    def __init__(self, store: EtcdStore, transport: EtcdCarrier, where: str) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._store = store
        self._transport = transport
        self._where = where
        self._begin()

    def _begin(self) -> None:
        """Nobody waits."""
        self._stream: Any = None
        self._subscriptions = Subscriptions(self._store)
        self._wanted: SimpleQueue[tuple[str, Busy | None]] = SimpleQueue()
        """What is to be watched for an attempt; None: nothing any more."""
        self._waiting: set[str] = set()
        self._closed = False

    def new_loop(self) -> None:
        self._transport.after_fork()
        self._begin()

    def after_fork(self) -> None:
        self._store.reset()
        self.new_loop()

    def _running(self, steps: Steps[T], limit: float) -> Steps[T]:
        """The steps of an operation, with calls that are functions."""
        ends = clock.now() + limit

        def sending(call: EtcdCall) -> Any:
            left = ends - clock.now()
            if left <= 0:
                raise TimeoutError(f"timed out after {limit:.3g} s")
            return partial(self._transport.send, call, left)

        try:
            result = yield from mapped(steps, sending)
            if self._store.session.rests:
                self._wake()
            return result
        except StoreError:
            raise
        except DRIVER_ERRORS as error:
            raise translate(error, self._where) from error

    # For those who wait. Nobody holds a mutex here: a signal handler may interrupt it for as long as it likes.

    def _wants(self, attempt: str, busy: Busy | None) -> bool:
        """Have an attempt woken. False when there is no stream: then it has to poll."""
        if attempt:
            self._waiting.add(attempt)
        stream = self._stream
        if stream is not None and busy is not None:
            self._wanted.put((attempt, busy))
            stream.wake()  # if it has failed meanwhile, all who wait are called
        return stream is not None

    def forget(self, attempt: str) -> None:
        self._waiting.discard(attempt)
        if self._stream is not None:
            self._wanted.put((attempt, None))  # the server is told with what is sent next

    def _wake(self) -> None:
        """It is closed, or a lease is to be ended."""
        if (stream := self._stream) is not None:
            stream.wake()

    # The listener itself.

    def _listening(self) -> Steps[None]:
        """Until it is closed."""
        pause = PAUSES[0]
        while not self._closed:
            began = clock.now()
            try:
                yield from self._listen_once()
            except (StoreUnavailable, *DRIVER_ERRORS) as error:
                if not self._closed:
                    log(WARNING, "%s: listener failed, waiters poll until it is back: %s", self._where, error)
            except Exception as error:
                log(WARNING, "%s: listener failed unexpectedly; retrying: %s", self._where, error, exc=error)
            if not self._closed:
                self._ring_all()  # from now on they have to poll
            yield partial(self._sleep, pause)
            # One that hears nothing but refusals is not to try in a hot loop.
            pause = PAUSES[0] if clock.now() - began > HEARTBEAT else min(pause * 2, PAUSES[1])

    def _listen_once(self) -> Steps[None]:
        stream = yield partial(self._transport.watch, CONNECT_LIMIT)
        try:
            stream.send([self._subscriptions.begin()])
            while not self._subscriptions.listening:
                told = yield partial(stream.read, CONNECT_LIMIT)
                stream.send(self._subscriptions.heard(told, asked=True)[1])
            self._stream = stream
            self._ring_all()  # what happened before we listened
            yield from self._hear(stream)
        except (StoreUnavailable, *DRIVER_ERRORS) as error:
            stream.failed(error)
            raise
        finally:
            self._stream = None
            stream.close()

    def _hear(self, stream: Any) -> Steps[None]:
        asked, since = False, clock.now()
        while not self._closed:
            self._want(stream)
            due = min([since + HEARTBEAT, *(ends for ends, _ in self._store.session.rests)])
            told = yield partial(stream.read, max(0.0, due - clock.now()))
            silent = told is None and clock.now() >= since + HEARTBEAT - _ABOUT
            if told or silent:  # else it was woken
                wake_ups, messages = self._subscriptions.heard(told, asked)
                stream.send(messages)
                self._ring(wake_ups)
                asked, since = silent, clock.now()
            yield from self._end_rests()

    def _want(self, stream: Any) -> None:
        """Have the server watch what is wanted by now."""
        while not self._wanted.empty():
            attempt, busy = self._wanted.get()
            if busy is None or attempt not in self._waiting:  # it may have ended while the stream was away
                self._subscriptions.drop(attempt)
                continue
            wake_ups, messages = self._subscriptions.add(attempt, busy.watch)
            self._ring(wake_ups)
            stream.send(messages)

    def _end_rests(self) -> Steps[None]:
        rests = self._store.session.rests
        for rest in [each for each in rests if each[0] <= clock.now() + _ABOUT]:
            rests.remove(rest)
            try:
                yield partial(self.run, self._store.end_rest(rest[1]), CONNECT_LIMIT)
            except StoreError:
                pass  # it runs out

    def _ring(self, wake_ups: list[WakeUp]) -> None:
        for ring in wake_ups:
            self.on_ring(*ring)

    def _ring_all(self) -> None:
        """Whoever waits is to ask again, and what is held is to be looked at."""
        for attempt in (*self._waiting, ""):
            self.on_ring(attempt)
