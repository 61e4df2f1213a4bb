"""What the models of the kinds share: time, queues, silence, crashes, and what a lease may say of itself.

Three ``Locks`` on one store in memory, with a clock that the machine moves in small steps. What is held is renewed at
each step, as a keeper would; a holder that has fallen silent is not, and one that has crashed is gone without a word.
A call that waits runs in a thread of its own, an :class:`Actor`. The machine lets it go on when it is rung, or when its
sleep is over, and waits until it sleeps again: so one thread runs at a time.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import leasehold
from leasehold.core import timing
from leasehold.core.effects import Wait
from leasehold.core.protocol import SECOND
from leasehold.stores.memory import MemoryStore, MemoryThreads, Table
from leasehold.threads.runner import ThreadRegistry

TTL = 10.0
MARGIN = 0.01 * TTL + 0.05
"""A lease is trusted for so much less than the store keeps it."""
STEP = 0.5
"""Exact in binary: the model and the store have to agree on the very moment. Shorter than a first term."""
WHO = st.integers(0, 2)
PATIENCE = 60.0
"""By the real clock: a guard against hanging."""


class Held:
    """A lease, and what the model knows of it: whose, until when the store keeps it, and what of which names."""

    def __init__(self, lease: Any, who: int, until: float, what: Any, names: Iterable[str], weight: int) -> None:
        self.lease, self.who, self.until, self.what, self.weight = lease, who, until, what, weight
        self.names = set(names)
        self.kept = True
        self.broken = False
        self.offered = False


class Ended(BaseException):
    """The machine ends an actor in the middle of a wait, as an interrupt does."""


class Actor:
    """A thread that runs only while the machine waits for it: until it sleeps, or has ended."""

    def __init__(self, machine: Kind, function: Callable[[], Any]) -> None:
        self._prepare(machine)
        threading.Thread(target=self._run, args=(function,), daemon=True).start()
        self._until_asleep()

    def _prepare(self, machine: Kind) -> None:
        self.machine = machine
        self.result: Any = None
        self.over = False
        self.dead = False
        """Whether it is never to be woken again."""
        self.bell: Any = None
        self.until = 0.0
        self._error: BaseException | None = None
        self._ending = False
        self._turn, self._asleep = threading.Semaphore(0), threading.Semaphore(0)
        machine.actors.append(self)

    # For the machine.

    def look(self) -> bool:
        """Let it go on if there is reason to. False when it sleeps."""
        if self.over or self.dead or self.bell is None or (self.bell.silent and self.machine.now < self.until):
            return False
        self.go_on()
        return True

    def go_on(self) -> None:
        self._turn.release()
        self._until_asleep()

    def end(self) -> None:
        """Interrupt its wait, and all that follow."""
        if not self.over:
            self._ending = True
            self.go_on()

    def _until_asleep(self) -> None:
        assert self._asleep.acquire(timeout=PATIENCE), "it neither sleeps nor ends"
        if self._error is not None:
            raise self._error

    # In its thread.

    def pause(self) -> None:
        """Sleep until the machine lets it go on."""
        if not self._ending:
            self._asleep.release()
            self._turn.acquire()
            self.bell = None
            if self._ending:
                raise Ended

    def waits(self, effects: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The effects, with each wait in the machine's time."""
        try:
            effect = next(effects)
            while True:
                if isinstance(effect, Wait):
                    assert effect.seconds is not None
                    self.bell, self.until = effect.bell, self.machine.now + effect.seconds
                    self.pause()
                    effect = effect._replace(seconds=0.0)
                try:
                    answer = yield effect
                except Exception as error:
                    effect = effects.throw(error)
                else:
                    effect = effects.send(answer)
        except StopIteration as stop:
            return stop.value
        finally:
            effects.close()

    def _run(self, function: Callable[[], Any]) -> None:
        self.machine.local.actor = self
        try:
            self.result = function()
        except Ended:
            pass
        except BaseException as error:
            self._error = error
        self.over = True
        self._asleep.release()


class Waiting(Actor):
    """An acquire that waits in the queue."""

    def __init__(self, machine: Kind, who: int, lock: Any, what: Any = None, weight: int = 1) -> None:
        self.who, self.what, self.weight = who, what, weight
        super().__init__(machine, lock.acquire)

    @property
    def lease(self) -> Any:
        return self.result

    def give_up(self) -> None:
        self.end()

    def crash(self) -> None:
        self.dead = True


class MachineCore(ThreadRegistry):
    """What is behind a ``Locks`` in the machine's time: no timer, and its actors wait as the machine says."""

    def __init__(self, machine: Kind, who: int) -> None:
        self.machine = machine
        super().__init__(
            MemoryStore("memory"),
            MemoryThreads(machine.table, ""),
            namespace="",
            owner=f"o{who}",
            kinds=None,
            defaults={"ttl": TTL, "renew": False},
        )
        self.now = lambda: machine.now

    def watch_deadline(self) -> None:
        pass

    def drive(self, effects: Any, cancel: Any = None) -> Any:
        actor = self.machine.actor()
        return super().drive(effects if actor is None else actor.waits(effects), cancel)


class Kind(RuleBasedStateMachine):
    """What the machines share: time, queues, silence, crashes, and that tokens rise."""

    LIMIT = 1
    CORE = MachineCore

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.table = Table(now_us=lambda: int(self.now * SECOND))
        self.local = threading.local()
        self.actors: list[Actor] = []
        self.locks = [self.connect(who) for who in range(3)]
        self.gone: list[Any] = []
        self.held: list[Held] = []
        self.crashed: list[Held] = []
        """Their leases too: a lease that is garbage collected would be released."""
        self.queues: dict[str, list[Any]] = {}
        self.highest: dict[str, int] = {}

    def connect(self, who: int) -> leasehold.Locks:
        """Both the holder's clock and the store's are the machine's."""
        return leasehold.Locks(self.CORE(self, who))

    def actor(self) -> Actor | None:
        """That of this thread, if it is one."""
        return getattr(self.local, "actor", None)

    def teardown(self) -> None:
        for actor in self.actors:
            actor.end()
        for held in self.held:
            held.lease.release()
        for locks in (*self.locks, *self.gone):
            locks.close()

    # The model.

    def live(self, name: str) -> list[Held]:
        """Who holds the name according to the model, dead holders too."""
        everyone = [*self.held, *self.crashed]
        return [held for held in everyone if held.until > self.now and name in held.names]

    def free(self, name: str) -> int:
        return self.LIMIT - sum(held.weight for held in self.live(name))

    def can_have(self, name: str, weight: int = 1) -> bool:
        """Whether it can be had at once: nobody who waits is overtaken."""
        return not self.queues.get(name) and self.free(name) >= weight

    def add(self, lease: Any, who: int, what: Any = None, weight: int = 1) -> Held:
        tokens: dict[str, int] = lease.tokens if hasattr(lease, "tokens") else {lease.name: lease.token}
        for name, token in tokens.items():
            assert token > self.highest.get(name, 0), "tokens rise, in the order of the queue"
            self.highest[name] = token
        self.held.append(Held(lease, who, self.now + TTL, what, tokens, weight))
        return self.held[-1]

    def stand(self, who: int, lock: Any, what: Any = None, weight: int = 1) -> None:
        """Wait in the queue."""
        self.queues.setdefault(lock.name, []).append(Waiting(self, who, lock, what, weight))
        self.settle()

    def settle(self) -> None:
        """Let everybody go on who can; and whoever is next according to the model, and nobody else, has the lease."""
        waiting = [each for queue in self.queues.values() for each in queue]
        while any(each.look() for each in waiting):
            pass
        for name, queue in self.queues.items():
            while queue and self.free(name) >= queue[0].weight:
                first = queue.pop(0)
                assert first.lease is not None, "it is its turn"
                self.add(first.lease, first.who, first.what, first.weight)
            assert all(each.lease is None for each in queue), "it is not its turn"

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP)):
            self.now += STEP
            for held in self.held:
                if held.kept and not held.broken and not held.offered:
                    held.lease.renew()
                    held.until = self.now + TTL
            for each in itertools.chain(*self.queues.values()):
                if each.lease is not None:  # after the death of one who waited before it
                    each.lease.renew()
            if not any(each.dead for queue in self.queues.values() for each in queue):
                self.settle()
            else:
                for each in itertools.chain(*self.queues.values()):
                    each.look()
            self.stepped()

    def stepped(self) -> None:
        """A moment has passed."""

    # What can happen.

    @rule(by=st.sampled_from([0.5, 2.0, 6.0, 11.0]))
    def wait(self, by: float) -> None:
        self.pass_time(by)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        # What was offered is trusted no longer, and can be taken back by its release while nobody has taken it.
        trusted = held.lease.remaining > 0 or (held.offered and held.until - MARGIN > self.now)
        assert held.lease.release() == trusted
        assert held.lease.release() is False
        self.held.remove(held)
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), for_long=st.booleans())
    def fall_silent(self, data: st.DataObject, for_long: bool) -> None:
        """Its keeper is stuck: the lease runs out, and its holder must know by then."""
        data.draw(st.sampled_from(self.held)).kept = False
        if for_long:
            self.pass_time(TTL + 1)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """Nobody renews or releases it any more: it stands in the store until it runs out."""
        self.die(data.draw(st.sampled_from(self.held)))

    def die(self, held: Held) -> None:
        self.held.remove(held)
        self.crashed.append(held)

    @precondition(lambda self: any(self.queues.values()))
    @rule(data=st.data(), crashes=st.booleans())
    def wait_no_longer(self, data: st.DataObject, crashes: bool) -> None:
        """One who waits gives up, or dies: its place runs out, and whoever is behind sees that when it looks."""
        queue = data.draw(st.sampled_from([queue for queue in self.queues.values() if queue]))
        one = data.draw(st.sampled_from(queue))
        if crashes:
            one.crash()
            self.pass_time(timing.WAITER_TTL + timing.FALLBACK + STEP)
        else:
            one.give_up()
        queue.remove(one)
        self.settle()

    @invariant()
    def a_lease_is_trusted_only_while_it_is_held(self) -> None:
        for held in self.held:
            if held.lease.valid:
                assert held.until > self.now
                assert not held.offered
            elif held.until > self.now + 1:  # more than the margin is left
                assert held.broken or held.offered
