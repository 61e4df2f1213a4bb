"""Carries out the core's effects in asyncio tasks: the caller's own, and the keeper's."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from ..core import acquire, keeper, release, timing
from ..core.drain import drain
from ..core.effects import Effects, Listen, Run, Wait
from ..core.lease import BaseLease
from ..core.log import ERROR, WARNING, log
from ..core.options import Spec
from ..core.protocol import Ask, Store, TaskDriver, await_steps
from ..core.registry import Registry
from ..core.state import LeaseState
from ..model import Event
from ..runtime.wakeups import ThreadBell
from .events import ListenerQueue
from .wakeups import TaskBell

T = TypeVar("T")
L = TypeVar("L", bound=BaseLease)

LOOK = 0.1
"""How often ``close`` checks which callbacks wait for it, so that it does not wait for them."""
GRACE = 0.05
"""How long a cancelled acquire waits while what it may have left is given back. The rest runs in the background."""
REVIVE = 0.1
"""How long after its cancellation the keeper is restarted, if the loop still runs."""
_callback: ContextVar[asyncio.Task[Any] | None] = ContextVar("leasehold_callback", default=None)
"""The task of the async callback that runs this code, or started it."""
BLOCKED = 0.05
"""A loop counts as blocked if, when a lease has been lost, it does not run a callback for so long."""


class TaskRegistry(Registry):
    """The books of a ``Locks``, and what carries out its effects in tasks."""

    driver: TaskDriver

    def __init__(
        self,
        store: Store,
        driver: TaskDriver,
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
            cancel_on_loss=True,
        )

    def reset(self) -> None:
        super().reset()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.loop_thread = 0
        self.bell: TaskBell | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.closers: set[asyncio.Task[Any]] = set()  # tasks and callbacks that wait for ``close`` or ``drain``
        self.queues: dict[int, ListenerQueue] = {}  # by the id of the listener
        self.closing: asyncio.Future[None] | None = None

    def bind(self) -> asyncio.AbstractEventLoop:
        """The running loop. Raises RuntimeError if this ``Locks`` is in use in another one."""
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            if self.loop is not None and not self.loop.is_closed():
                raise RuntimeError("this Locks is in use in another event loop: call connect() in each loop")
            if self.loop is not None:  # the keeper ended with the loop; it starts again in this one
                self.driver.new_loop()
                self.keeping = False
                self.tasks.clear()
                self.queues.clear()
                if not self.finished:
                    self.closing = None
            self.loop, self.loop_thread = loop, threading.get_ident()
            self.bell = TaskBell(loop)
        return loop

    caller = "task"

    def me(self) -> weakref.ref[asyncio.Task[Any]] | None:
        task = asyncio.current_task()
        return None if task is None else weakref.ref(task)

    def new_bell(self) -> TaskBell:
        return TaskBell(self.bind())

    def drive(self, effects: Effects[T]) -> Coroutine[Any, Any, T]:
        """Carry out effects in this task."""
        return await_steps(effects, self._carry_out)

    def _carry_out(self, effect: Run | Wait | Listen) -> Awaitable[Any]:
        if isinstance(effect, Run):
            return self.driver.run(effect.steps, effect.limit)
        if isinstance(effect, Listen):
            return self.driver.listen(effect.attempt, effect.busy)
        assert isinstance(effect.bell, TaskBell)
        return effect.bell.wait(effect.seconds)

    def spawn(self, work: Coroutine[Any, Any, T], context: Context | None = None) -> asyncio.Task[T]:
        """Start a task and keep a reference to it until it is done. ``close`` waits for it."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def spawn_callback(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The same for a user's callback. If it calls ``close``, that does not wait for it."""

        context = copy_context()
        task = self.spawn(work, context)
        context.run(_callback.set, task)
        return task

    async def call(self, steps: Any) -> Any:
        self.check_open()
        self.bind()
        return await self.driver.run(steps, timing.CALL_LIMIT)

    async def acquire(self, make: Callable[..., L], spec: Spec, timeout: timing.Duration | None) -> L:
        """Acquire a lease; ``make`` makes its handle. However this fails, nothing stays behind in the store."""
        if timeout is not None:
            timeout = timing.patience(timeout)
        self.check_giving_out(spec.heir)
        bell = TaskBell(self.bind())
        born, ask = self.generation, spec.ask(self.owner, queue=timeout is None or timeout > 0)
        try:
            self.asking[ask.attempt] = bell
            taken = await self.drive(acquire.acquire(self, spec, ask, timeout, bell, born))
            return self.hold(make, [spec], [taken], bell, born)[0]
        except BaseException as error:
            await self._give_up([ask], error, born)
            raise
        finally:
            self.asking.pop(ask.attempt, None)

    async def acquire_all(self, make: Callable[..., L], specs: Sequence[Spec], timeout: float | None) -> list[L] | None:
        """Acquire several names in one step of the store, without waiting; None if that is not possible now."""
        self.check_giving_out()
        bell = TaskBell(self.bind())
        born, asks = self.generation, [spec.ask(self.owner, queue=False) for spec in specs]
        try:
            self.asking.update((ask.attempt, bell) for ask in asks)
            taken = await self.drive(acquire.acquire_all(self, specs, asks, timeout, born))
            return None if taken is None else self.hold(make, specs, taken, bell, born)
        except BaseException as error:
            await self._give_up(asks, error, born)
            raise
        finally:
            for ask in asks:
                self.asking.pop(ask.attempt, None)

    async def _give_up(self, asks: Sequence[Ask], error: BaseException, born: int) -> None:
        """Give back what a failed acquire may have left in the store: up to GRACE here, then in the background.

        Not in a child that was forked since the acquire was ``born``: that is the parent's."""
        if born != self.generation or not acquire.owes(asks[0], error):
            return
        if isinstance(error, GeneratorExit):  # the coroutine is being thrown away and may not await any more
            for ask in asks:
                self.give_back_soon(release.owed(self, ask))
            return
        await asyncio.wait({self.spawn(self.drive(release.abandon(self, asks, error)))}, timeout=GRACE)

    # The keeper, the events, and calls from other threads.

    def wake_keeper(self) -> None:
        if not self.keeping and threading.get_ident() == self.loop_thread and self.loop is not None:
            self.keeping = self.loop.is_running()
            if self.keeping and self.bell is not None:
                self.spawn(self._keep(self.bell)).add_done_callback(self._kept)
        if self.bell is not None:
            self.bell.ring()

    async def _keep(self, bell: TaskBell) -> None:
        await self.drive(keeper.keep(self, bell))
        if self.dropped:
            self._begin_close(timing.CALL_LIMIT)

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        """The keeper has ended, perhaps before it began."""
        self.keeping = False
        if self.closed is None and self.loop is not None and not self.loop.is_closed():
            # All tasks of the loop were cancelled. If the loop keeps running, the keeper starts again.
            self.loop.call_later(REVIVE, self._revive)

    def _revive(self) -> None:
        if self.closed is None and (self.leases or self.unsettled):
            self.wake_keeper()
        elif self.closed is None and self.dropped:
            self._begin_close(timing.CALL_LIMIT)

    def drop(self) -> None:
        """The ``Locks`` was collected: close after the last lease. Called by a destructor."""
        self.dropped = True
        self.standing.clear()
        if self.keeping and self.bell is not None:
            self.bell.ring()
        elif self.loop is not None and self.loop.is_running():
            self.in_loop(functools.partial(self._begin_close, timing.CALL_LIMIT))
        elif not self.finished:
            self.at_exit(0.0)

    def in_loop(self, function: Callable[[], object]) -> None:
        """Call the function in the loop. Does nothing if the loop is closed, or there was none yet."""
        if self.loop is not None:
            try:
                self.loop.call_soon_threadsafe(function)
            except RuntimeError:
                pass

    def report(self, lost: list[LeaseState]) -> None:
        """Report what the timer ended; if the loop is blocked, also for how long and where."""
        overdue = self.now() - min(state.due for state in lost)
        awake = threading.Event()
        self.in_loop(awake.set)
        if any(state.spec.timing.renew for state in lost) and not awake.wait(BLOCKED):
            overdue = max(overdue, 0.0) + BLOCKED
            frame = sys._current_frames().get(self.loop_thread)
            where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}" if frame else "?"
            log(
                WARNING,
                "the event loop was blocked for at least %.2f s, now at %s; leases lost: %s",
                overdue,
                where,
                ", ".join(repr(state.name) for state in lost),
                event="blocked",
                blocked_for=overdue,
                where=where,
            )
        super().report(lost)

    def pass_on(self, event: Event) -> None:
        for listener in list(self.listeners):
            self.in_loop(functools.partial(self._put, listener, event))

    def _put(self, listener: Callable[[Event], object], event: Event) -> None:
        queue = self.queues.get(id(listener))
        if queue is None:
            queue = self.queues[id(listener)] = ListenerQueue(listener, self.spawn_callback)
        queue.put(event)

    def call_back(self, callback: Callable[..., object], *args: object) -> None:
        """Call a user's function in the loop; if it is async, run it in a task of its own."""

        async def finish(awaitable: Awaitable[object]) -> None:
            try:
                await awaitable
            except Exception as error:
                log(ERROR, "the callback %r raised an error", callback, exc=error)

        try:
            result = callback(*args)
        except Exception as error:
            log(ERROR, "the callback %r raised an error", callback, exc=error)
        else:
            if asyncio.iscoroutine(result):
                self.spawn_callback(finish(result))

    async def close(self, limit: float = timing.CALL_LIMIT) -> None:
        self.bind()
        with self._uncancelled():
            await asyncio.shield(self._begin_close(limit))  # a caller that is cancelled does not stop it

    async def drain(self, grace: timing.Duration) -> list[str]:
        with self._uncancelled():
            return await self.drive(drain(self, grace))

    @contextmanager
    def _uncancelled(self) -> Iterator[None]:
        """The calling task ends its own leases: their loss does not cancel it, and ``close`` does not wait for it."""
        closers = {task for task in (_callback.get(), asyncio.current_task()) if task is not None} - self.closers
        self.closers |= closers
        try:
            yield
        finally:
            self.closers -= closers

    def _begin_close(self, limit: float) -> asyncio.Future[None]:
        if self.closing is None:
            self.closed = self.closed or "this Locks is closed"
            self.closing = asyncio.ensure_future(self._close(limit))
        return self.closing

    async def _close(self, limit: float) -> None:
        await self.drive(keeper.close(self, limit, TaskBell(asyncio.get_running_loop())))
        if self.bell is not None:
            self.bell.ring()
        ends = self.now() + limit
        await asyncio.sleep(0)  # events reach the listeners in the loop
        for queue in self.queues.values():
            queue.resume()
        while (tasks := self.tasks - self.closers) and (left := ends - self.now()) > 0:
            # A task that ends may start others; one that runs now may begin to wait for this close.
            await asyncio.wait(tasks, timeout=min(left, LOOK), return_when=asyncio.FIRST_COMPLETED)
        await self.driver.close()
        self.finished = True

    def _carry_out_at_exit(self, effect: Run | Wait | Listen, ends: float) -> Any:
        if isinstance(effect, Run):
            return self.driver.run_at_exit(effect.steps, effect.limit)
        assert isinstance(effect, Wait)
        assert isinstance(effect.bell, ThreadBell)
        return effect.bell.wait(min(effect.seconds or 0.0, ends - self.now()))

    def at_exit(self, limit: float) -> None:
        """The loop has ended: give back what is held without it."""
        if self.finished and not self.unsettled:
            return
        ends = self.now() + limit
        effects = keeper.close(self, limit, ThreadBell())
        self.closed = "the interpreter is exiting"
        self.asking.clear()
        self.giving.clear()
        try:
            effect = next(effects)
            while self.now() < ends:
                try:
                    answer = self._carry_out_at_exit(effect, ends)
                except Exception as error:
                    effect = effects.throw(error)
                else:
                    effect = effects.send(answer)
        except StopIteration:
            pass
        self.driver.close_at_exit()
        self.finished = True
