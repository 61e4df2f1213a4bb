"""``election``, ``once`` and ``group`` against models that a glance can check, on the clock and with the faults of
:mod:`kinds.models`: random operations, silence, expiries and crashes.

What a thread of theirs would do meanwhile (tell a leader to stop, look who is there) is carried out by hand here.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

import leasehold
from leasehold.effects import Run, Wait
from leasehold.election import RESIGNED, watch
from leasehold.election_threads import Term
from leasehold.group import FAILED, JOINED, LEFT, Watch

from .models import STEP, TTL, WHO, Held, Kind


class Unkept(Kind):
    """The machine renews, and nobody else: these kinds ask for renewal themselves."""

    def connect(self, who: int) -> leasehold.Locks:
        locks = super().connect(who)
        locks._core.wake_keeper = lambda: None  # type: ignore[method-assign]
        return locks


class Leading:
    """A term, and what watches over it."""

    def __init__(self, machine: Kind, lease: Any, before: float) -> None:
        self.machine = machine
        self.term = Term(lease, before)
        self.effects = watch(lease._core, self.term)
        self.until = machine.now
        self.look()

    def look(self) -> None:
        """Go on if there is reason to."""
        while self.effects is not None and (self.term._bell.rang() or self.machine.now >= self.until):
            try:
                effect = next(self.effects)
            except StopIteration:
                self.effects = None  # type: ignore[assignment]
                return
            assert isinstance(effect, Wait)
            assert effect.seconds is not None
            self.until = self.machine.now + effect.seconds


class Leaders(Unkept):
    """Candidates stand in a queue. Who leads has a term, and a callback that returns some time after it was told to."""

    def add(self, lease: Any, who: int, what: Any = None, weight: int = 1) -> Held:
        held = super().add(lease, who, what, weight)
        held.what = Leading(self, lease, self.candidate(who)._before)
        return held

    def candidate(self, who: int) -> Any:
        return self.locks[who].election("leader", ttl=TTL)

    def leading(self, told: bool) -> list[Held]:
        """Those whose callback has been told to stop, or has not."""
        return [held for held in self.held if held.what.term.stopping.is_set() == told]

    def stepped(self) -> None:
        for held in self.held:
            held.what.look()

    def ended(self, held: Held) -> Any:
        """The callback returns."""
        term = held.what.term
        term.close()
        held.what.look()
        assert held.what.effects is None, "nobody watches over it any more"
        trusted = held.lease.valid
        assert held.lease.release() == trusted
        self.held.remove(held)
        self.settle()
        return term

    @rule(who=WHO)
    def campaign(self, who: int) -> None:
        self.stand(who, self.candidate(who))

    @precondition(lambda self: self.leading(told=False))
    @rule(data=st.data())
    def resign(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.leading(told=False)))
        held.what.term.end(RESIGNED)
        assert held.what.term.over == RESIGNED

    @precondition(lambda self: self.leading(told=True))
    @rule(data=st.data())
    def stop_when_told(self, data: st.DataObject) -> None:
        """And stand again, behind the others."""
        held = data.draw(st.sampled_from(self.leading(told=True)))
        assert self.ended(held).over is not None
        self.stand(held.who, self.candidate(held.who))

    @precondition(lambda self: self.leading(told=False))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """It has done what it wanted to do, and leads no longer."""
        held = data.draw(st.sampled_from(self.leading(told=False)))
        assert self.ended(held).over is None

    def die(self, held: Held) -> None:
        held.what = None
        super().die(held)

    @invariant()
    def one_leads(self) -> None:
        """Terms never overlap: no two callbacks are to go on at the same time, and who leads holds the lease."""
        leaders = [held for held in self.held if held.what.term.valid]
        assert len(leaders) <= 1
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
                assert lease.remaining >= min(term._before, lease.ttl / 4), "there is time to stop"


class Died(BaseException):
    """As a process dies: in the middle of anything."""


FATES = st.lists(st.sampled_from(["done", "fails", "dies", "expires", "is overtaken"]), max_size=4)


class DoneOnce(Unkept):
    """The model: of each version whether it is done, how often it was tried to an end, and by whom it was last."""

    VERSIONS = (1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.recorded: dict[int, tuple[bool, int, str]] = {}
        self.calls = 0
        self.last = ""

    def fate(self, who: int, version: int, fate: str) -> str:
        """What becomes of one call of the function."""
        self.calls += 1
        lease = leasehold.current()
        assert lease.valid
        again = lease._claim.attempt == self.last  # the same holder tries again, under the same lease
        assert lease.token == self.highest["work"] if again else lease.token > self.highest.get("work", 0)
        self.highest["work"], self.last = lease.token, lease._claim.attempt
        if fate == "dies":
            lease._core.leases.pop(lease._claim.attempt)
            lease._given = True  # nobody gives it back
            self.crashed.append(Held(None, who, self.now + TTL, lease.token, ["work"], 1))
            raise Died
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
            "work", version=version, retries=retries, retry_by="same" if same else "any", wait=wait and not dead
        )
        try:
            outcome = once.run(lambda: self.fate(who, version, next(coming)))
        except Died:
            assert status == "dies"
        else:
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
        callbacks: Any = {JOINED: [], LEFT: [], FAILED: []}
        self.watch = Watch(self.locks[0]._core, "g", STEP, callbacks)

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

    def die(self, held: Held) -> None:
        held.lease._core.standing.pop(held.lease._claim.attempt)
        super().die(held)

    @rule()
    def listen(self) -> None:
        listener = Listener()
        for happened, callbacks in self.watch.callbacks.items():
            callbacks.append(listener.on(happened))
        self.listeners.append((listener, []))
        self.fresh.append(len(self.listeners) - 1)

    @rule()
    def look(self) -> None:
        core = self.locks[0]._core
        effects = self.watch.changes()
        answer: Any = None
        try:
            while True:
                effect = effects.send(answer)
                answer = core.driver.run(*effect) if isinstance(effect, Run) else True
        except StopIteration as stop:
            for callback, member in stop.value:
                callback(member)
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
