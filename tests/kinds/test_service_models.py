"""``election``, ``once`` and ``group`` against models that a glance can check, on the clock and with the faults of
:mod:`kinds.models`: random operations, silence, expiries and crashes.

The threads that these kinds start (to tell a leader to stop, to look who is there) are actors too.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

import leasehold

from .models import PATIENCE, STEP, TTL, WHO, Actor, Held, Kind, MachineCore

JOINED, LEFT, FAILED = "joined", "left", "failed"


class Adopted(Actor):
    """A thread of the library's. It waits for its first turn before it does anything."""

    def __init__(self, machine: Unkept) -> None:
        self._prepare(machine)
        machine.local.actor = self
        machine.adopted.put(self)
        self._turn.acquire()

    def end(self) -> None:
        """From now on it runs alone, and ends by itself."""
        self._ending = True
        self._turn.release()

    def finish(self) -> None:
        """In its thread: no more is to come."""
        self.over = True
        self._asleep.release()

    def pause(self) -> None:
        if not self._ending:
            self._asleep.release()
            self._turn.acquire()
            self.bell = None


class UnkeptCore(MachineCore):
    """The machine renews, and nobody else: these kinds ask for renewal themselves."""

    machine: Unkept

    def wake_keeper(self) -> None:
        pass

    def drive(self, effects: Any, cancel: Any = None) -> Any:
        try:
            return super().drive(effects, cancel)
        finally:
            self.machine.drove()


class Unkept(Kind):
    CORE = UnkeptCore

    def __init__(self) -> None:
        self.main = threading.current_thread()
        self.adopted: queue.SimpleQueue[Adopted] = queue.SimpleQueue()
        super().__init__()

    def actor(self) -> Actor | None:
        found = super().actor()
        return Adopted(self) if found is None and threading.current_thread() is not self.main else found

    def drove(self) -> None:
        """A thread has come to the end of some effects."""


class Candidate(Actor):
    """One who stands for election, and leads until the machine lets it go on."""

    weight = 1

    def __init__(self, machine: Leaders, who: int) -> None:
        self.who = who
        self.term: Any = None
        self.watch: Any = None
        """What watches over its term."""
        self.before = 0.0
        self.election = machine.locks[who].election("leader", ttl=TTL)
        super().__init__(machine, lambda: self.election.run(self.lead))

    @property
    def what(self) -> Candidate:
        return self

    @property
    def lease(self) -> Any:
        return None if self.term is None else self.term.lease

    def lead(self, term: Any) -> str:
        self.watch = self.machine.adopted.get(timeout=PATIENCE)
        self.term = term
        self.pause()
        return "led"

    def give_up(self) -> None:
        self.election.stop()
        self.go_on()
        assert self.over
        assert self.result is None

    def crash(self) -> None:
        self.dead = True
        if self.watch is not None:
            self.watch.dead = True


BEFORE = TTL / 6
"""How long before the end of its term a leader is told to stop, unless something else is asked for."""


class Leaders(Unkept):
    """Candidates stand in a queue. Who leads has a term, and a callback that returns some time after it was told to."""

    def drove(self) -> None:
        actor = self.actor()
        if isinstance(actor, Adopted):  # what watches over a term does nothing else
            actor.finish()

    def add(self, lease: Any, who: int, what: Any = None, weight: int = 1) -> Held:
        held = super().add(lease, who, what, weight)
        what.watch.go_on()
        return held

    def leading(self, told: bool) -> list[Held]:
        """Those whose callback has been told to stop, or has not."""
        return [held for held in self.held if held.what.term.stopping.is_set() == told]

    def stepped(self) -> None:
        for held in self.held:
            held.what.watch.look()

    def ended(self, held: Held) -> Any:
        """The callback returns. Returns its term."""
        candidate = held.what
        term, watch, trusted = candidate.term, candidate.watch, held.lease.valid
        candidate.term = candidate.watch = None
        candidate.go_on()
        watch.look()
        assert watch.over, "nobody watches over it any more"
        assert not held.lease.valid
        assert held.lease.release() is False, "that has been done"
        assert (held.lease.lost_reason is None) == trusted
        self.held.remove(held)
        return term

    @rule(who=WHO)
    def campaign(self, who: int) -> None:
        self.queues.setdefault("leader", []).append(Candidate(self, who))
        self.settle()

    @precondition(lambda self: self.leading(told=False))
    @rule(data=st.data())
    def resign(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.leading(told=False)))
        held.what.election.resign()
        assert held.what.term.over == "the leader has resigned"

    @precondition(lambda self: self.leading(told=True))
    @rule(data=st.data())
    def stop_when_told(self, data: st.DataObject) -> None:
        """It stands again, behind the others."""
        held = data.draw(st.sampled_from(self.leading(told=True)))
        assert self.ended(held).over is not None
        assert not held.what.over
        self.queues["leader"].append(held.what)
        self.settle()

    @precondition(lambda self: self.leading(told=False))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """It has done what it wanted to do, and leads no longer."""
        held = data.draw(st.sampled_from(self.leading(told=False)))
        assert self.ended(held).over is None
        assert held.what.over
        assert held.what.result == "led"
        self.settle()

    def die(self, held: Held) -> None:
        held.what.crash()
        super().die(held)

    @invariant()
    def one_leads(self) -> None:
        """Terms never overlap: no two callbacks are to go on at the same time, and who leads holds the lease."""
        leaders = [held for held in self.held if held.what.term.valid]
        assert len(leaders) <= 1
        assert [held for held in self.held if held.what.election.is_leader] == leaders
        for held in leaders:
            assert held.until > self.now
            assert [each for each in self.live("leader") if each is not held] == []

    @invariant()
    def it_is_told_before_its_term_ends(self) -> None:
        for held in self.held:
            term, lease = held.what.term, held.lease
            assert term.stopping.is_set() == (not term.valid)
            if term.valid:
                assert lease.valid
                assert lease.remaining >= min(BEFORE, lease.ttl / 4), "there is time to stop"


FATES = st.lists(st.sampled_from(["done", "fails", "dies", "expires", "is overtaken"]), max_size=4)


class DoneOnce(Unkept):
    """The model: of each version whether it is done, how often it was tried to an end, and by whom it was last."""

    VERSIONS = (1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.recorded: dict[int, tuple[bool, int, str]] = {}
        self.calls = 0
        self.last: Any = None

    def fate(self, who: int, version: int, fate: str) -> str:
        """What becomes of one call of the function."""
        self.calls += 1
        lease = leasehold.current()
        assert lease.valid
        again = lease is self.last  # the same holder tries again
        assert lease.token == self.highest["work"] if again else lease.token > self.highest.get("work", 0)
        self.highest["work"], self.last = lease.token, lease
        if fate == "dies":
            self.crashed.append(Held(lease, who, self.now + TTL, lease.token, ["work"], 1))
            self.local.actor.pause()  # for ever
        if fate == "fails":
            raise ValueError(fate)
        if fate != "done":
            self.now += TTL + 1  # nobody has renewed it
            assert not lease.valid
        if fate == "is overtaken":
            other = (who + 1) % 3
            once = self.locks[other].once("work", version=version, retries=9)
            assert once.run(lambda: self.fate(other, version, "done")).ran
        return fate

    @rule(
        who=WHO,
        version=st.sampled_from(VERSIONS),
        retries=st.integers(0, 2),
        same=st.booleans(),
        fates=FATES,
        wait=st.booleans(),
    )
    def run(self, who: int, version: int, retries: int, same: bool, fates: list[str], wait: bool) -> None:
        done, attempts, owner = self.recorded.get(version, (False, 0, ""))
        dead = self.live("work")
        calls, status, ran = 0, "", False
        if done or attempts > retries:
            status = "done" if done else "failed"
        elif dead:
            status, owner, attempts = "running", f"o{dead[0].who}", 0
        left = list(fates)
        while not status:
            fate = left.pop(0) if left else "done"
            calls += 1
            if fate == "dies":
                status = "dies"
            elif fate == "expires":
                status = "lost"
            elif fate == "is overtaken":
                calls, status, owner, attempts = calls + 1, "done", f"o{(who + 1) % 3}", attempts + 1
                self.recorded[version] = (True, attempts, owner)
            elif fate in ("done", "fails"):
                attempts, owner, done = attempts + 1, f"o{who}", fate == "done"
                self.recorded[version] = (done, attempts, owner)
                if done or attempts > retries:
                    status, ran = "done" if done else "failed", True
        before, coming = self.calls, iter([*fates, *["done"] * 9])
        once = self.locks[who].once(
            "work",
            version=version,
            retries=retries,
            retry_by="same" if same else "any",
            wait=wait and not dead,
            check=False,
        )

        def run() -> Any:
            try:
                return once.run(lambda: self.fate(who, version, next(coming)))
            except leasehold.LeaseLost:
                return None

        caller = Actor(self, run)
        assert caller.over == (status != "dies")
        if status == "lost":
            assert caller.result is None
        elif caller.over:
            outcome = caller.result
            assert (outcome.status, outcome.owner, outcome.attempts, outcome.ran) == (status, owner, attempts, ran)
            if status == "running":
                assert outcome.token == dead[0].what
        assert self.calls - before == calls, "nothing is done twice"

    @precondition(lambda self: not self.live("work"))
    @rule(who=WHO, version=st.sampled_from((None, *VERSIONS)))
    def forget(self, who: int, version: int | None) -> None:
        if version is None:
            assert self.locks[who].once("work").forget(every_version=True) == bool(self.recorded)
            self.recorded.clear()
        else:
            there = self.recorded.pop(version, None) is not None
            assert self.locks[who].once("work", version=version).forget() == there

    @invariant()
    def everybody_says_the_same(self) -> None:
        for locks in self.locks:
            for version in self.VERSIONS:
                outcome = locks.once("work", version=version).outcome()
                found = None if outcome is None else (outcome.ok, outcome.attempts, outcome.owner)
                assert found == self.recorded.get(version)


class Listener:
    """One who has registered for everything."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def on(self, happened: str) -> Any:
        return lambda member: self.told.append((happened, member.id))


class Groups(Unkept):
    """Members come, go and fall silent, and one looks who is there every so often, for those who listen."""

    LIMIT = 1_000_000

    def __init__(self) -> None:
        super().__init__()
        self.left: set[int] = set()
        self.seen: dict[int, float] = {}
        """Who was there at the last look, and when it would have failed."""
        self.listeners: list[tuple[Listener, list[tuple[str, int]]]] = []
        """Each with what it ought to have been told."""
        self.fresh: list[int] = []
        self.group = self.locks[0].group("g", look=STEP)
        self.looker: Any = None
        """The thread that looks."""

    def members(self) -> dict[int, float]:
        return {held.what: held.until for held in self.live("g")}

    @rule(who=WHO)
    def join(self, who: int) -> None:
        membership = self.locks[who].group("g", heartbeat=TTL / 4, misses=4).join(who)
        self.add(membership, who, membership.token)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        self.left.add(held.what)
        trusted = held.lease.valid
        assert held.lease.release() == trusted
        self.held.remove(held)

    @rule()
    def listen(self) -> None:
        listener = Listener()
        self.group.on_joined(listener.on(JOINED))
        self.group.on_left(listener.on(LEFT))
        self.group.on_failed(listener.on(FAILED))
        if self.looker is None:
            self.looker = self.adopted.get(timeout=PATIENCE)
        self.listeners.append((listener, []))
        self.fresh.append(len(self.listeners) - 1)

    @precondition(lambda self: self.looker is not None)
    @rule()
    def look(self) -> None:
        self.looker.go_on()
        now, before = self.members(), self.seen
        changes = []
        for token in sorted(before.keys() - now.keys()):
            failed = self.now >= before[token]
            assert failed or token in self.left, "who has left in good order has not failed, if it was seen in time"
            changes.append((FAILED if failed else LEFT, token))
        changes += [(JOINED, token) for token in sorted(now.keys() - before.keys())]
        for number, (_, ought) in enumerate(self.listeners):
            ought.extend([(JOINED, token) for token in sorted(before)] if number in self.fresh else [])
            ought.extend(changes)
        self.fresh, self.seen = [], now

    @invariant()
    def each_is_told_once_and_in_order(self) -> None:
        for listener, ought in self.listeners:
            assert listener.told == ought
            assert len(set(ought)) == len(ought)

    @invariant()
    def everybody_sees_the_same(self) -> None:
        for locks in self.locks:
            found = locks.group("g").members()
            assert [member.id for member in found] == sorted(self.members())
            assert {member.owner for member in found} == {f"o{held.who}" for held in self.live("g")}


TestLeaders = Leaders.TestCase
TestDoneOnce = DoneOnce.TestCase
TestGroups = Groups.TestCase
for _machine in (Leaders, DoneOnce, Groups):
    _machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
del _machine
