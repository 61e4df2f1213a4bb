"""Carrying out the engine's effects with threads: the caller's own, and the keeper's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from . import engine, policy
from .bells import ThreadBell
from .core import Core
from .errors import AcquireCancelled
from .lease import BaseLease
from .log import ERROR, log
from .model import Event
from .protocol import Store, ThreadDriver
from .spec import Spec
from .typed import Any, TypeVar

T = TypeVar("T")
L = TypeVar("L", bound=BaseLease)

CANCEL_SLICE = 0.05
"""How often a wait with a ``cancel`` event looks at it."""


class ThreadCore(Core):
    """The books of a ``Locks``, and what carries out effects with threads."""

    driver: ThreadDriver

    def __init__(
        self,
        store: Store,
        driver: ThreadDriver,
        *,
        namespace: str,
        owner: str | None,
        kinds: Mapping[str, object] | None,
        defaults: Mapping[str, Any],
    ) -> None:
        super().__init__(
            store,
            driver,
            namespace=namespace,
            owner=owner,
            kinds=kinds,
            defaults=defaults,
            cancel_on_loss=False,
        )

    def reset(self) -> None:
        super().reset()
        self.bell = ThreadBell()
        self.closing = threading.Lock()
        self.keeper: threading.Thread | None = None
        self.events: Any = None

    def drive(self, effects: engine.Effects[T], cancel: threading.Event | None = None) -> T:
        """Carry out effects in this thread."""
        try:
            effect = next(effects)
            while True:
                try:
                    answer = self._carry_out(effect, cancel)
                except Exception as error:
                    effect = effects.throw(error)
                else:
                    effect = effects.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            effects.close()  # at once, also when a KeyboardInterrupt went past it

    def _carry_out(self, effect: engine.Run | engine.Wait | engine.Listen, cancel: threading.Event | None) -> Any:
        match effect:
            case engine.Run(steps, limit):
                return self.driver.run(steps, limit)
            case engine.Wait(bell, seconds):
                assert isinstance(bell, ThreadBell)
                return bell.wait(seconds) if cancel is None else self._wait_or_cancel(bell, seconds, cancel)
            case engine.Listen(attempt, busy):
                return self.driver.listen(attempt, busy)

    def _wait_or_cancel(self, bell: ThreadBell, seconds: float | None, cancel: threading.Event) -> bool:
        end = None if seconds is None else self.now() + seconds
        while not cancel.is_set():
            left = CANCEL_SLICE if end is None else min(CANCEL_SLICE, end - self.now())
            if left <= 0:
                return False
            if bell.wait(left):
                return True
        raise AcquireCancelled("the cancel event was set while waiting for the lease")

    def call(self, steps: Any) -> Any:
        self.check_open()
        return self.driver.run(steps, policy.CALL_LIMIT)

    def acquire(self, make: Callable[..., L], spec: Spec, timeout: float | None, cancel: threading.Event | None) -> L:
        """A lease, made by ``make``. Whatever happens in here, nothing is left behind in the store."""
        if timeout is not None:
            policy.seconds(timeout, "timeout", zero=True)
        if cancel is not None and cancel.is_set():
            raise AcquireCancelled(f"the cancel event was set before {spec.name!r} was asked for")
        self.check_open()
        bell = ThreadBell()
        ask = spec.ask(self.owner, queue=timeout is None or timeout > 0)
        try:
            self.asking[ask.attempt] = bell
            taken = self.drive(engine.acquire(self, spec, ask, timeout, bell), cancel)
            lease = make(self, spec, taken.claim, taken.sent, taken.trusted)
            self.add(lease)
            del self.asking[ask.attempt]
            if bell.rang():  # called since the grant: it may have been broken already
                self.rung(ask.attempt)
            return lease
        except BaseException as error:
            if engine.owes(ask, error):
                self.drive(engine.abandon(self, ask, error))
            raise
        finally:
            self.asking.pop(ask.attempt, None)

    # The keeper and the events, each in a daemon thread that starts when first needed.

    def wake_keeper(self) -> None:
        if not self.keeping:
            with self.mutex:
                if not self.keeping:
                    self.keeping = True
                    self.keeper = threading.Thread(target=self._keep, name="leasehold-keeper", daemon=True)
                    self.keeper.start()
        self.bell.ring()

    def _keep(self) -> None:
        self.drive(engine.keep(self, self.bell))
        if self.dropped and self.closed is None:
            self.close()

    def drop(self) -> None:
        """Nobody has the ``Locks`` any more: end with the last lease. Called by a destructor."""
        self.dropped = True
        if self.keeping:
            self.bell.ring()
        else:
            self.close()

    def pass_on(self, event: Event) -> None:
        if self.events is None:
            import queue

            with self.mutex:
                if self.events is None:
                    self.events = queue.SimpleQueue()
                    threading.Thread(target=self._tell, name="leasehold-events", daemon=True).start()
        self.events.put(event)

    def _tell(self) -> None:
        events = self.events
        while (event := events.get()) is not None:
            for listener in list(self.listeners):
                try:
                    listener(event)
                except Exception as error:
                    log(ERROR, "an event listener failed on %r", event.type, exc=error)

    def close(self, limit: float = policy.CALL_LIMIT) -> None:
        """Each step can be done again, so that a close that was interrupted can be called again."""
        ends = self.now() + limit
        with self.closing:
            if self.finished:
                return
            self.closed = self.closed or "this Locks is closed"
            self.drive(engine.close(self, limit, ThreadBell()))
            self.bell.ring()
            if self.keeper is not None and self.keeper is not threading.current_thread():
                self.keeper.join(max(0.0, ends - self.now()))
            if self.events is not None:
                self.events.put(None)
            self.driver.close()
            self.finished = True

    def at_exit(self, limit: float) -> None:
        if self.closed is not None and self.keeper is not None:
            self.keeper.join(limit)  # it is at it
        self.close(limit)
