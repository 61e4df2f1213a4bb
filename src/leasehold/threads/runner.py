"""Carries out the core's effects in threads: the caller's own, and the keeper's."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..core import acquire, keeper, release, timing
from ..core.effects import Effects, Listen, Run, Wait
from ..core.lease import BaseLease
from ..core.log import ERROR, log
from ..core.options import Spec
from ..core.protocol import Ask, Store, ThreadDriver
from ..core.registry import Registry
from ..model import Event
from ..runtime.thread_start import Life, aside, start_thread
from ..runtime.wakeups import ThreadBell
from .cancel import Cancel, ThreadCall

T = TypeVar("T")
L = TypeVar("L", bound=BaseLease)


class ThreadRegistry(Registry):
    """The books of a ``Locks``, and what carries out its effects in threads."""

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
        self.closing = threading.RLock()
        self.updating = threading.RLock()  # held while a membership of a group is replaced
        self.keeper: Life | None = None
        self.events: Any = None

    caller = "thread"

    def me(self) -> weakref.ref[threading.Thread]:
        return weakref.ref(threading.current_thread())

    def new_bell(self) -> ThreadBell:
        return ThreadBell()

    def drive(self, effects: Effects[T], cancel: Cancel | None = None) -> T:
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
            effects.close()  # at once, also after a KeyboardInterrupt

    def _carry_out(self, effect: Run | Wait | Listen, cancel: Cancel | None) -> Any:
        if isinstance(effect, Run):
            run = self.driver.run
            return run(*effect) if cancel is None else cancel.run(run, *effect)
        if isinstance(effect, Listen):
            return self.driver.listen(effect.attempt, effect.busy)
        bell, seconds = effect
        assert isinstance(bell, ThreadBell)
        return bell.wait(seconds) if cancel is None else cancel.wait(bell, seconds)

    def call(self, steps: Any) -> Any:
        self.check_open()
        return self.driver.run(steps, timing.CALL_LIMIT)

    def acquire(
        self, make: Callable[..., L], spec: Spec, timeout: timing.Duration | None, event: threading.Event | None
    ) -> L:
        """Acquire a lease; ``make`` makes its handle. However this fails, nothing stays behind in the store."""
        if timeout is not None:
            timeout = timing.patience(timeout)
        cancel = None if event is None else Cancel(event)
        if cancel is not None:
            cancel.check()
        self.check_giving_out(spec.heir)
        bell = ThreadBell()
        born, ask = self.generation, spec.ask(self.owner, queue=timeout is None or timeout > 0)
        try:
            self.asking[ask.attempt] = bell
            taken = self.drive(acquire.acquire(self, spec, ask, timeout, bell, born), cancel)
            return self.hold(make, [spec], [taken], bell, born)[0]
        except BaseException as error:
            self._give_up([ask], error, cancel, born)
            raise

    def acquire_all(
        self, make: Callable[..., L], specs: Sequence[Spec], timeout: float | None, event: threading.Event | None
    ) -> list[L] | None:
        """Acquire several names in one step of the store, without waiting; None if that is not possible now."""
        cancel = None if event is None else Cancel(event)
        if cancel is not None:
            cancel.check()
        self.check_giving_out()
        bell = ThreadBell()
        born, asks = self.generation, [spec.ask(self.owner, queue=False) for spec in specs]
        try:
            self.asking.update((ask.attempt, bell) for ask in asks)
            taken = self.drive(acquire.acquire_all(self, specs, asks, timeout, born), cancel)
            if taken is not None:
                return self.hold(make, specs, taken, bell, born)
            self._forget(asks)
            return None
        except BaseException as error:
            self._give_up(asks, error, cancel, born)
            raise

    def _give_up(self, asks: Sequence[Ask], error: BaseException, cancel: Cancel | None, born: int) -> None:
        """Give back what a failed acquire may have left in the store, but not in a child that was forked since it was
        ``born``: that is the parent's."""
        if born != self.generation:
            return
        under_way = None if cancel is None else cancel.under_way
        if under_way is not None and not under_way.withdraw():
            try:
                aside("leasehold-cancelled", self._abandon_after, under_way, asks, error)
            except BaseException:
                self._forget(asks)
                raise
            return
        try:
            if acquire.owes(asks[0], error):
                self.drive(release.abandon(self, asks, error))
        finally:
            self._forget(asks)

    def _abandon_after(self, call: ThreadCall, asks: Sequence[Ask], error: BaseException) -> None:
        """The same for an acquire whose call is still under way: give back after it, not before."""
        try:
            while not call.wait(1.0):
                pass
            self.drive(release.abandon(self, asks, error))
        finally:
            self._forget(asks)

    def _forget(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            self.asking.pop(ask.attempt, None)
            self.driver.forget(ask.attempt)  # again: an interrupt may have kept ``acquire`` from it

    # The keeper and the events, each in a daemon thread that starts when first needed.

    def wake_keeper(self) -> None:
        if not self.keeping:
            with self.mutex:
                if not self.keeping:
                    self.keeping = True  # before it runs: other threads must not start another one
                    try:
                        start_thread("leasehold-keeper", self._keep)
                    except BaseException:  # no thread can be started now: the next caller that needs the keeper retries
                        self.keeping = self.keeper is not None
                        raise
        self.bell.ring()

    def _keep(self) -> None:
        life = Life()
        with self.mutex:
            if self.keeper is not None:
                return  # an interrupt came just after this thread was started, so another one was started
            self.keeper, self.keeping = life, True
        with life:
            self.drive(keeper.keep(self, self.bell))
            if self.dropped and self.closed is None:
                self.close()

    def drop(self) -> None:
        """The ``Locks`` was collected: close after the last lease. Called by a destructor."""
        self.dropped = True
        self.standing.clear()
        if self.keeping:
            self.bell.ring()
        else:
            self.close()

    def pass_on(self, event: Event) -> None:
        events = self.events or self._start_telling()
        if events is not None:
            events.put(event)
        else:
            self._call_listeners(event)

    def _start_telling(self) -> Any:
        """The queue of events, with a thread that reads it. None if no thread can be started: then the caller calls the
        listeners itself."""
        import queue

        with self.mutex:
            if self.events is None:
                events: Any = queue.SimpleQueue()
                try:
                    start_thread("leasehold-events", self._tell, events)
                except RuntimeError:
                    return None
                self.events = events
            return self.events

    def _tell(self, events: Any) -> None:
        while (event := events.get()) is not None:
            self._call_listeners(event)

    def _call_listeners(self, event: Event) -> None:
        for listener in list(self.listeners):
            try:
                listener(event)
            except Exception as error:
                log(ERROR, "a listener raised an error on the event %r", event.type, exc=error)

    def close(self, limit: float = timing.CALL_LIMIT) -> None:
        """Every step can be repeated, so an interrupted close can be called again."""
        ends = self.now() + limit
        with self.closing:
            if self.finished:
                return
            self.closed = self.closed or "this Locks is closed"
            self.drive(keeper.close(self, limit, ThreadBell()))
            self.bell.ring()
            if self.keeper is not None:
                self.keeper.join(max(0.0, ends - self.now()))
            if self.events is not None:
                self.events.put(None)
            self.driver.close()
            self.finished = True

    def at_exit(self, limit: float) -> None:
        if self.closed is not None and self.keeper is not None:
            self.keeper.join(limit)  # it is releasing what is held
        self.close(limit)
