"""Each kind against a model that a glance can check: random operations, waiting in turn, expiries, breaks, crashes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

import leasehold
from leasehold.testing.handles import eventually

from .models import TTL, WHO, Held, Kind

TAKEN = "it was handed over with transfer(), and another process has taken it over"


class Semaphores(Kind):
    LIMIT = 2

    @rule(who=WHO)
    def acquire(self, who: int) -> None:
        lease = self.locks[who].semaphore("s", limit=self.LIMIT).try_acquire()
        assert (lease is not None) == self.can_have("s")
        if lease is not None:
            self.add(lease, who)

    @rule(who=WHO)
    def queue(self, who: int) -> None:
        self.stand(who, self.locks[who].semaphore("s", limit=self.LIMIT))

    @rule(who=WHO)
    def in_another_shape(self, who: int) -> None:
        for other in (self.locks[who].lock("s"), self.locks[who].semaphore("s", limit=3)):
            try:
                lease = other.try_acquire()
            except ValueError:
                assert self.live("s")
            else:
                assert lease is not None
                assert not self.live("s")
                self.highest["s"] = lease.token
                assert lease.release()


class ReadersAndWriters(Kind):
    LIMIT = 1_000_000

    def side(self, who: int, what: str) -> Any:
        both = self.locks[who].rwlock("rw")
        return both.read() if what == "read" else both.write()

    def weight(self, what: str) -> int:
        return 1 if what == "read" else self.LIMIT

    @rule(who=WHO, what=st.sampled_from(["read", "write"]))
    def acquire(self, who: int, what: str) -> None:
        weight = self.weight(what)
        lease = self.side(who, what).try_acquire()
        assert (lease is not None) == self.can_have("rw", weight)
        if lease is not None:
            self.add(lease, who, what, weight)

    @rule(who=WHO, what=st.sampled_from(["read", "write"]))
    def queue(self, who: int, what: str) -> None:
        self.stand(who, self.side(who, what), what, self.weight(what))

    @invariant()
    def a_writer_is_alone(self) -> None:
        live = self.live("rw")
        assert len(live) <= 1 or all(held.what == "read" for held in live)

    @precondition(lambda self: any(held.what == "write" for held in self.held))
    @rule(data=st.data())
    def downgrade(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from([held for held in self.held if held.what == "write"]))
        trusted = held.lease.valid
        try:
            reader = held.lease.downgrade()
        except leasehold.LeaseLost:
            assert not trusted
        else:
            assert trusted
            assert not held.lease.valid
            self.held.remove(held)
            self.add(reader, held.who, "read")
            self.settle()

    @precondition(lambda self: any(held.what == "write" and held.lease.valid for held in self.held))
    @rule(who=WHO, data=st.data())
    def downgrade_while_a_reader_waits(self, who: int, data: st.DataObject) -> None:
        self.queue(who, "read")
        self.downgrade(data)


class Reentrant(Kind):
    """One thread, three ``Locks``. All entries of one of them are one holding."""

    def free(self, name: str) -> int:
        return 0 if self.live(name) else 1

    def entries(self, who: int) -> list[Held]:
        return [held for held in self.held if held.who == who and held.what == "entry"]

    @rule(who=WHO)
    def enter(self, who: int) -> None:
        mine = self.entries(who)
        can = self.can_have("r")
        try:
            lease = self.locks[who].rlock("r").try_acquire()
        except leasehold.LeaseLost:
            assert mine
            assert not mine[0].lease.valid
            return
        if mine:
            assert lease is not None
            assert lease.valid
            assert lease.token == mine[0].lease.token, "one token"
            again = Held(lease, who, mine[0].until, "entry", ["r"], 1)
            again.kept = mine[0].kept
            self.held.append(again)
        else:
            assert (lease is not None) == can
            if lease is not None:
                self.add(lease, who, "entry")

    @precondition(lambda self: any(each.what == "entry" and not each.lease.valid for each in self.held))
    @rule(data=st.data())
    def enter_what_is_lost(self, data: st.DataObject) -> None:
        """Whoever is still in a block of a lost lease is told so when it enters again."""
        lost = [each for each in self.held if each.what == "entry" and not each.lease.valid]
        with pytest.raises(leasehold.LeaseLost):
            self.locks[data.draw(st.sampled_from(lost)).who].rlock("r").try_acquire()

    @rule(who=WHO)
    def queue(self, who: int) -> None:
        """``lock`` and ``rlock`` of one name contend with each other."""
        self.stand(who, self.locks[who].lock("r"), "plain")

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        others = [each for each in self.entries(held.who) if each is not held] if held.what == "entry" else []
        trusted = held.lease.valid
        assert held.lease.release() == trusted
        assert held.lease.release() is False
        self.held.remove(held)
        assert all(each.lease.valid == trusted for each in others), "the others go on"
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), for_long=st.booleans())
    def fall_silent(self, data: st.DataObject, for_long: bool) -> None:
        held = data.draw(st.sampled_from(self.held))
        for each in self.entries(held.who) if held.what == "entry" else [held]:
            each.kept = False
        if for_long:
            self.pass_time(TTL + 1)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """A process with all its entries; another takes its place, and is in none of its blocks."""
        held = data.draw(st.sampled_from(self.held))
        if held.what != "entry":
            self.die(held)
            return
        for each in self.entries(held.who):
            self.die(each)
        self.gone.append(self.locks[held.who])
        self.locks[held.who] = self.connect(held.who)


class SeveralNames(Kind):
    @rule(who=WHO, names=st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
    def acquire(self, who: int, names: list[str]) -> None:
        lease = self.locks[who].all_of(*names).try_acquire()
        assert (lease is not None) == all(self.can_have(name) for name in names), "all or none"
        if lease is not None:
            self.add(lease, who)
        self.settle()

    @rule(who=WHO, name=st.sampled_from("abcd"))
    def queue(self, who: int, name: str) -> None:
        self.stand(who, self.locks[who].lock(name))

    @precondition(lambda self: any(held.until > self.now and held.names for held in self.held))
    @rule(data=st.data())
    def force(self, data: st.DataObject) -> None:
        """An operator frees one name: the whole lease is lost, and its other names stand until it is released."""
        held = data.draw(st.sampled_from([held for held in self.held if held.until > self.now and held.names]))
        name = data.draw(st.sampled_from(sorted(held.names)))
        assert self.locks[0].break_lease(name, force=True)
        held.names.discard(name)
        held.broken = True
        eventually(lambda: not held.lease.valid, what="the keeper has been notified")
        self.settle()


class HandedOver(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[str, Held]] = []

    @rule(who=WHO)
    def acquire(self, who: int) -> None:
        lease = self.locks[who].lock("t").try_acquire()
        assert (lease is not None) == self.can_have("t")
        if lease is not None:
            self.add(lease, who)

    @rule(who=WHO)
    def queue(self, who: int) -> None:
        self.stand(who, self.locks[who].lock("t"))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def offer(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        trusted = held.lease.valid
        try:
            text = held.lease.transfer()
        except leasehold.LeaseLost:
            assert not trusted
        else:
            assert trusted
            held.until = self.now + TTL
            held.offered = True
            self.texts.append((text, held))

    @precondition(lambda self: self.texts)
    @rule(who=WHO, data=st.data())
    def accept(self, who: int, data: st.DataObject) -> None:
        """It goes before those who wait; also when the one who offered it is dead."""
        text, offered = data.draw(st.sampled_from(self.texts))
        there = offered in self.live("t")
        try:
            lease = self.locks[who].accept(text)
        except leasehold.LeaseLost:
            assert not there
        else:
            assert there
            if offered in self.held:
                assert not offered.lease.valid
                eventually(lambda: offered.lease.lost_reason == TAKEN, what="the keeper has been notified")
            (self.held if offered in self.held else self.crashed).remove(offered)
            self.add(lease, who)


TestSemaphores = Semaphores.TestCase
TestReadersAndWriters = ReadersAndWriters.TestCase
TestReentrant = Reentrant.TestCase
TestSeveralNames = SeveralNames.TestCase
TestHandedOver = HandedOver.TestCase
for _machine in (Semaphores, ReadersAndWriters, Reentrant, SeveralNames, HandedOver):
    _machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
del _machine
