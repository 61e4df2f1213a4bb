"""What the models of the kinds share: time, queues, silence, crashes, and what a lease may say of itself.

Three ``Locks`` on one store in memory, with a clock that the machine moves in small steps. What is held is renewed at
each step, as a keeper would; a holder that has fallen silent is not, and one that has crashed is gone without a word.
Acquires that wait are carried out by hand: they go on when they are rung, or when their sleep is over.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import leasehold
from leasehold import effects, engine, policy
from leasehold.bells import ThreadBell
from leasehold.protocol import SECOND

TTL = 10.0
STEP = 0.5
"""Exact in binary: the model and the store have to agree on the very moment. Shorter than a first term."""
WHO = st.integers(0, 2)
_numbers = itertools.count()


class Held:
    """A lease, and what the model knows of it: whose, until when the store keeps it, and what of which names."""

    def __init__(self, lease: Any, who: int, until: float, what: Any, names: Iterable[str], weight: int) -> None:
        self.lease, self.who, self.until, self.what, self.weight = lease, who, until, what, weight
        self.names = set(names)
        self.kept = True
        self.broken = False
        self.offered = False


class Waiting:
    """An acquire that waits in the queue."""

    def __init__(self, machine: Kind, who: int, lock: Any, what: Any) -> None:
        self.machine, self.who, self.what = machine, who, what
        self.core, self.spec = lock._core, lock._spec
        self.ask = self.spec.ask(self.core.owner, queue=True)
        self.bell = self.core.asking[self.ask.attempt] = ThreadBell()
        self.effects = engine.acquire(self.core, self.spec, self.ask, None, self.bell)
        self.lease: Any = None
        self.until = machine.now
        self.dead = False
        self._go_on(None)

    def look(self) -> bool:
        """Go on if there is reason to. False when it sleeps."""
        if self.lease is not None or self.dead or not (self.bell.rang() or self.machine.now >= self.until):
            return False
        self._go_on(True)
        return True

    def _go_on(self, answer: Any) -> None:
        try:
            while True:
                effect = self.effects.send(answer)
                if isinstance(effect, effects.Wait):
                    assert effect.seconds is not None
                    self.until = self.machine.now + effect.seconds
                    return
                if isinstance(effect, effects.Listen):
                    answer = self.core.driver.listen(effect.attempt, effect.busy)
                else:
                    answer = self.core.driver.run(effect.steps, effect.limit)
        except StopIteration as stop:
            self.lease = leasehold.Lease(self.core, self.spec, *stop.value)
            self.core.add(self.lease)
            del self.core.asking[self.ask.attempt]

    def give_up(self) -> None:
        self.crash()
        self.core.driver.run(self.core.store.abandon(self.ask.name, self.ask.attempt), 1.0)

    def crash(self) -> None:
        self.dead = True
        self.effects.close()
        self.core.asking.pop(self.ask.attempt, None)


class Kind(RuleBasedStateMachine):
    """What the machines share: time, queues, silence, crashes, and that tokens rise."""

    LIMIT = 1

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.url = f"memory://models-{next(_numbers)}"
        self.locks = [self.connect(who) for who in range(3)]
        self.gone: list[Any] = []
        self.held: list[Held] = []
        self.crashed: list[Held] = []
        self.queues: dict[str, list[Waiting]] = {}
        self.highest: dict[str, int] = {}

    def connect(self, who: int) -> leasehold.Locks:
        """Both the holder's clock and the store's are the machine's."""
        locks = leasehold.connect(self.url, ttl=TTL, renew=False, owner=f"o{who}")
        core: Any = locks._core
        read = core.driver._row
        core.driver._row = lambda name: read(name)._replace(now=int(self.now * SECOND))
        core.now = lambda: self.now
        core.watch_deadline = lambda: None  # the timer goes by the real one
        return locks

    def teardown(self) -> None:
        for waiting in itertools.chain(*self.queues.values()):
            waiting.give_up()
        for held in self.held:
            held.lease.release()
        for locks in (*self.locks, *self.gone):
            locks._core.asking.clear()  # where a rule has failed: time stands still, and nobody would see them off
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

    def stand(self, who: int, lock: Any, what: Any = None) -> None:
        """Wait in the queue."""
        self.queues.setdefault(lock.name, []).append(Waiting(self, who, lock, what))
        self.settle()

    def settle(self) -> None:
        """Let everybody go on who can; and whoever is next according to the model, and nobody else, has the lease."""
        waiting = [each for queue in self.queues.values() for each in queue]
        while any(each.look() for each in waiting):
            pass
        for name, queue in self.queues.items():
            while queue and self.free(name) >= queue[0].ask.weight:
                first = queue.pop(0)
                assert first.lease is not None, "it is its turn"
                self.add(first.lease, first.who, first.what, first.ask.weight)
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
        trusted = held.lease.remaining > 0 or (held.offered and held.lease._deadline > self.now)
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
        for part in getattr(held.lease, "_parts", (held.lease,)):
            part._core.leases.pop(part._claim.attempt, None)
            part._given = True  # so that its destructor gives nothing back either
        held.lease = None
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
            self.pass_time(policy.WAITER_TTL + policy.FALLBACK + STEP)
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
