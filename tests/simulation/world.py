"""A world of processes, each with an event loop and a clock of its own, that runs by itself from a seed.

Time passes from event to event: a message arrives, a loop has something to do, a deadline passes. A process can be
paused (nothing of it runs), blocked (its loop does not run, its timer thread does) and killed.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
from collections.abc import Callable, Coroutine
from typing import Any

from leasehold.runtime import hooks
from leasehold.testing.history import History
from leasehold.testing.virtual import VirtualLoop, VirtualRegistry

NEVER = float("inf")
MOST_AT_ONCE = 100_000
"""Events at one instant, after which time is taken to stand still for ever."""


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.processes: list[Process] = []
        self.history = History(now=lambda: self.now)
        self.trace: list[tuple[float, str, str]] = []
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()

    def say(self, who: str, what: str) -> None:
        self.trace.append((self.now, who, what))

    def at(self, when: float, do: Callable[[], object]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._order), do))

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        self.at(self.now + seconds, do)

    def run(self, until: Callable[[], bool], limit: float) -> None:
        """Let time pass until something is so; at most until the time ``limit``."""
        at_once = 0
        while not until():
            at, process = self._events[0][0] if self._events else NEVER, None
            for each in self.processes:
                ready = each.next_at()
                if ready < at:
                    at, process = ready, each
            if at > limit:
                self.now = max(self.now, limit)
                return
            at_once = 0 if at > self.now else at_once + 1
            if at_once > MOST_AT_ONCE:
                raise RuntimeError(f"time stands still at {self.now:.3f}: {process.name if process else 'the network'}")
            self.now = max(self.now, at)
            if process is None:
                heapq.heappop(self._events)[2]()
            else:
                process.turn()


class Process:
    """One process: its clock runs at ``rate`` and shows something else than others' do."""

    def __init__(self, world: World, name: str, rate: float = 1.0) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        self.offset = world.rng.uniform(0, 1e6)
        self.loop = VirtualLoop(self.local)
        self.cores: list[VirtualRegistry] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.dead = False
        self.paused_until = self.blocked_until = 0.0
        self._stalls: list[tuple[float, float]] = []
        world.processes.append(self)

    # Its clock.

    def local(self) -> float:
        return self.offset + self.world.now * self.rate

    def world_time(self, local: float) -> float:
        """When its clock shows that, or a moment more: by rounding it could be less, and what waits for it would never
        see it come."""
        at = (local - self.offset) / self.rate
        while self.offset + at * self.rate < local:
            at += math.ulp(local)
        return at

    # Its life.

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self.tasks.append(task)
        return task

    def pause(self, seconds: float) -> None:
        self.world.say(self.name, f"paused for {seconds:.3f} s")
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        self._stalls.append((self.world.now, self.paused_until))

    def block(self, seconds: float) -> None:
        self.world.say(self.name, f"its loop is blocked for {seconds:.3f} s")
        self.blocked_until = max(self.blocked_until, self.world.now + seconds)
        self._stalls.append((self.world.now, self.blocked_until))

    def stalled(self, since: float) -> float:
        """How long it could not run its loop since then, at most."""
        return sum(max(0.0, min(end, self.world.now) - max(begin, since)) for begin, end in self._stalls)

    def kill(self) -> None:
        self.world.say(self.name, "killed")
        self.end()

    def end(self) -> None:
        """It is gone, and nothing of it may act any more, not even its destructors."""
        self.dead = True
        self.world.processes.remove(self)
        for core in self.cores:
            core.closed = "killed"
            core.unsettled.clear()
            core.finished = True
            core.owe = lambda owed: None  # type: ignore[method-assign]
            hooks.owing.discard(core)
        self.loop.end()

    def next_at(self) -> float:
        """When it next runs, in the world's time."""
        ready = max(self.world_time(self.loop.next_at()), self.blocked_until)
        for core in self.cores:
            ready = min(ready, self.world_time(core.next_deadline))
        return max(ready, self.paused_until)

    def turn(self) -> None:
        local = self.local() + 1e-6
        for core in self.cores:  # the timer's thread
            if core.next_deadline <= local:
                core.expire()
        if self.blocked_until <= self.world.now and self.loop.next_at() <= local:
            self.loop.turn()
