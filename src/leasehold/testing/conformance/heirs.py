"""A permit that passes from one attempt to another in one step: what ``transfer`` and ``downgrade`` rest on."""

from __future__ import annotations

import time

import pytest

from ...core.protocol import GONE, RENEWED, SECOND, Missing, Renewal
from ..handles import eventually
from ..processes import ChildFailed
from ..scene import Scene
from .fixtures import needs
from .operations import LONG, SOON, A, B, C, busy, give_back, grant, run_out


@needs("heir")
def test_op_heir_takes_the_permit_over(scene: Scene) -> None:
    """Reference, transfer: the token is raised, the term is new, and the first holder's is gone."""
    locks, other, name = scene.connect(owner="first"), scene.connect(owner="second"), scene.name()
    old = grant(locks.ask(name, A, 10))
    new = grant(other.ask(name, B, LONG, heir=(A, old.token), kind="batch"))
    assert new.token > old.token
    (seen,) = scene.held(name)
    assert (seen.owner, seen.token) == ("second", new.token)
    assert seen.expires_in > LONG - 10
    ttl = int(LONG * SECOND)
    assert list(locks.renewals(Renewal(name, A, old.token, ttl))) == [GONE]
    assert list(other.renewals(Renewal(name, B, new.token, ttl))) == [RENEWED]
    assert locks.run(locks.store.release(name, A, old.token, old.hint)) is False
    busy(locks.ask(name, C, LONG))
    assert other.run(other.store.release(name, B, new.token, new.hint)) is True
    assert grant(locks.ask(name, C, LONG)).token > new.token
    give_back(locks, name, C)


@needs("heir")
def test_op_heir_is_idempotent(scene: Scene) -> None:
    """S4: asked again after its answer was lost, it finds its own grant; nobody else can take it a second time."""
    locks, name = scene.connect(), scene.name()
    old = grant(locks.ask(name, A, LONG))
    new = grant(locks.ask(name, B, LONG, heir=(A, old.token)))
    assert grant(locks.ask(name, B, LONG, heir=(A, old.token))).token == new.token
    assert locks.ask(name, C, LONG, heir=(A, old.token)) == Missing()
    assert len(scene.held(name)) == 1
    give_back(locks, name, B)


@needs("heir")
def test_op_heir_of_nothing_is_missing(scene: Scene) -> None:
    """What is free, expired, broken or another's cannot be taken over; asking for it leaves nothing."""
    locks, name = scene.connect(), scene.name()
    assert locks.ask(name, B, LONG, heir=(A, 1)) == Missing()
    old = grant(locks.ask(name, A, LONG))
    assert locks.ask(name, B, LONG, heir=(A, old.token + 1)) == Missing()
    assert locks.ask(name, B, LONG, heir=(C, old.token), queue=True) == Missing()
    assert locks.run(locks.store.release(name, A, old.token, old.hint)) is True
    assert locks.ask(name, B, LONG, heir=(A, old.token)) == Missing()
    assert not scene.held(name)
    old = grant(locks.ask(name, A, 0.3))
    run_out(scene, name, 0.5)
    assert locks.ask(name, B, LONG, heir=(A, old.token)) == Missing()
    old = grant(locks.ask(name, A, LONG))
    assert locks.run(locks.store.interrupt(name, False)) is True
    assert locks.ask(name, B, LONG, heir=(A, old.token)) == Missing()
    assert scene.waiters(name) == 0
    give_back(locks, name, A)


@needs("heir", "fair")
def test_op_heir_goes_before_the_queue(scene: Scene) -> None:
    """Who waits goes on waiting, and is served by the heir's release."""
    locks, name = scene.connect(), scene.name()
    old = grant(locks.ask(name, A, LONG))
    assert busy(locks.ask(name, C, LONG, queue=True)).place == 0
    new = grant(locks.ask(name, B, LONG, heir=(A, old.token)))
    assert busy(locks.ask(name, C, LONG, queue=True)).place == 0
    assert locks.run(locks.store.release(name, B, new.token, new.hint)) is True
    assert grant(locks.ask(name, C, LONG, queue=True)).token > new.token
    give_back(locks, name, C)


@needs("heir", "fair", "rwlock")
def test_op_a_lighter_heir_lets_others_in(scene: Scene) -> None:
    """Reference, rwlock, downgrade: from a writer's weight to a reader's in one step, and waiting readers come in."""
    locks, name = scene.connect(), scene.name()
    shape = {"shape": "rw", "limit": 1000}
    writer = grant(locks.ask(name, A, LONG, weight=1000, **shape))
    assert busy(locks.ask(name, C, LONG, queue=True, **shape)).place == 0
    assert locks.ask(name, B, LONG, heir=(C, writer.token), weight=1000, **shape) == Missing()
    reader = grant(locks.ask(name, B, LONG, heir=(A, writer.token), **shape))
    assert grant(locks.ask(name, C, LONG, queue=True, **shape)).token > reader.token
    assert locks.ask(name, A, LONG, heir=(B, reader.token), weight=1000, **shape) == Missing(), "never heavier"
    assert len(scene.held(name)) == 2
    give_back(locks, name, B, C)


@needs("heir")
def test_op_heir_keeps_what_is_left_of_min_hold(scene: Scene) -> None:
    """Reference, min_hold: released no earlier, also when another does it."""
    locks, name = scene.connect(), scene.name()
    begun = time.monotonic()
    old = grant(locks.ask(name, A, LONG, rest=2 * SECOND))
    new = grant(locks.ask(name, B, LONG, heir=(A, old.token)))
    assert locks.run(locks.store.release(name, B, new.token, new.hint)) is True
    reply = locks.ask(name, C, LONG)
    if time.monotonic() - begun < 1.9:
        assert (busy(reply).expires_in or 0) <= 2.01
    give_back(locks, name, C)  # who has it, if that took longer
    eventually(lambda: not scene.held(name), SOON, "it rests no longer than min_hold")
    give_back(locks, name, A, B)


@needs("heir", "push")
def test_takeover_is_pushed_to_the_first_holder(scene: Scene) -> None:
    """Promise 6: the first holder's lease is lost at once, by a push, and not only at its next renewal."""
    (locks, faults), other, name = scene.faulty(), scene.connect(), scene.name()
    lease = locks.lock(name, ttl=60).acquire()
    eventually(lambda: "" in faults.listening, what="the keeper asks to listen")
    time.sleep(0.3)  # and listens
    new = grant(other.ask(name, B, LONG, heir=(other.attempt(name), lease.token)))
    assert new.token > lease.token
    assert lease.wait_lost(15), "long before it is renewed"
    assert "no longer holds" in str(lease.lost_reason)
    assert lease.release() is False
    give_back(other, name, B)


@needs("heir", "shared")
@pytest.mark.slow
def test_another_process_takes_a_lease_over(scene: Scene) -> None:
    """Reference, transfer: the text is all that another process needs. The token is raised, the first holder's lease is
    lost to it, and what becomes of that process is nothing to the second."""
    giver, taker, name = scene.process(), scene.process(), scene.name()
    first = giver.do("acquire", name=name, ttl=20)
    text = giver.do("offer", name=name)
    assert not giver.do("state", name=name)["valid"], "before anybody has taken it"
    taken = taker.do("accept", text=text)
    assert taken["valid"]
    assert taken["token"] > first["token"]
    assert taken["owner"] != first["owner"]
    eventually(lambda: "another process has taken it" in giver.do("state", name=name)["reason"], what="it hears of it")
    assert giver.do("release", name=name) is False
    with pytest.raises(ChildFailed, match="LeaseLost"):
        giver.do("accept", text=text)
    giver.kill()
    assert scene.connect(ttl=20).lock(name).try_acquire() is None
    assert taker.do("state", name=name)["valid"]
    assert [(each.owner, each.token) for each in scene.held(name)] == [(taken["owner"], taken["token"])]
    assert taker.do("release", name=name) is True


def test_store_says_what_it_lacks(scene: Scene) -> None:
    """STYLE 8: nothing is skipped in silence. What the suite is told that it lacks, the store lacks, and refuses."""
    locks, name = scene.connect(), scene.name()
    assert set(locks.store.lacks) == set(scene.store.lacks)
    if "heir" in locks.store.lacks:
        with pytest.raises(ValueError, match="heir"):
            locks.ask(name, B, LONG, heir=(A, 1))
    if "note" in locks.store.lacks:
        with pytest.raises(ValueError, match="note"):
            locks.run(locks.store.read_note(name))
        with pytest.raises(ValueError, match="note"):
            locks.run(locks.store.write_note(name, A, 1, "x"))
