"""One leader among candidates: terms that rise and never overlap, a callback that is stopped before its term ends."""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest

from ...core.timing import FIRST_TERM
from ...errors import ShuttingDown
from ..handles import Election, eventually, in_time
from ..scene import Scene
from .fixtures import needs

IN_TURN = FIRST_TERM * 0.7
"""One who takes over so soon was the next: nobody's turn has passed. On a loaded machine it may take longer."""


def test_one_of_the_candidates_leads(scene: Scene) -> None:
    """Reference, election: one leader; it resigns, the next one leads; tokens rise; who resigned stands again.

    Where there is a queue, behind the others: until each has led in turn, and the first leads again."""
    name = scene.name()
    candidates = [scene.connect(ttl=90).election(name) for _ in range(3)]
    jobs = [each.start() for each in candidates]
    leaders: list[Election] = []
    tokens: list[int] = []
    taken_over = 0
    in_turn = 0
    """How many have taken over in time, one after the other, the last one included."""
    while len(tokens) < 4 or (scene.store.fair and in_turn < 3):
        assert len(tokens) < 40, "the machine is too busy to see them take turns"
        leader = eventually(lambda: next((each for each in candidates if _leads_for_long(each)), None))
        assert [each.is_leader for each in candidates].count(True) == 1
        term = leader.terms[-1]
        assert term.valid
        assert leader.leader().token == term.token
        assert leader.healthy
        if tokens and term.token != taken_over:
            in_turn = 0  # whoever took over stood still for longer than a first term after that
            leaders.append(leader)
        if scene.store.fair:
            scene.until_waiting(name, 2)
        tokens.append(term.token)
        begun = time.monotonic()
        leader.resign()
        assert not term.valid
        assert not leader.is_leader or leader.terms[-1] is not term
        successor = eventually(functools.partial(_later, candidates, term.token))
        in_turn = in_turn + 1 if time.monotonic() - begun < IN_TURN else 0
        taken_over = successor.terms[-1].token
        leaders += [successor] if leaders else [leader, successor]
        if scene.store.fair and in_turn >= 2:
            assert len({id(each) for each in leaders[-3:]}) == 3, "somebody was passed over"
        if scene.store.fair and in_turn >= 3:
            assert leaders[-1] is leaders[-4]
    assert tokens == sorted(set(tokens))
    for each in candidates:
        each.stop()
    assert [job.result() for job in jobs] == [None] * 3
    # One who is stopped in the middle of a call does not wait for it: what that brings is given back after it.
    eventually(lambda: candidates[0].leader() is None)


def _leads_for_long(candidate: Election) -> bool:
    """Whether it leads, and not only for a first term, which is over soon if its renewal is late."""
    return candidate.is_leader and bool(candidate.terms[-1].lease.remaining > 2 * FIRST_TERM)


def _later(candidates: list[Election], token: int) -> Election | None:
    return next((each for each in candidates if each.terms and each.terms[-1].token > token), None)


def test_return_of_the_callback_ends_the_candidacy(scene: Scene) -> None:
    """Reference, election: run returns what the callback returns; with on_error="raise" an error comes out; the name is
    free after both."""
    locks, name = scene.connect(ttl=30), scene.name()
    first = locks.election(name, data={"at": "here"})

    def elected(term: Any) -> str:
        term.check()
        return f"{first.leader() if scene.side == 'threads' else ''}"

    assert ("here" in first.start(elected).result()) == (scene.side == "threads")
    assert not first.is_leader

    def fails(term: Any) -> None:
        raise KeyError("work")

    assert isinstance(locks.election(name, on_error="raise").start(fails).error(), KeyError)
    assert not scene.held(name)
    assert first.start(lambda term: 7).result() == 7


def test_error_of_a_callback_ends_the_term_and_not_the_candidacy(scene: Scene) -> None:
    """Reference, election: after each candidate has failed once, one of them leads."""
    name = scene.name()
    candidates = [scene.connect(ttl=90).election(name) for _ in range(2)]

    def fails_once(candidate: Election, term: Any) -> None:
        if len(candidate.terms) == 1:
            raise KeyError("work")

    assert not any(each.healthy for each in candidates), "none of them runs"
    jobs = [each.start(functools.partial(fails_once, each)) for each in candidates]
    leader = eventually(lambda: next((each for each in candidates if len(each.terms) > 1 and each.is_leader), None))
    eventually(lambda: all(each.terms for each in candidates))
    assert leader.terms[-1].token > leader.terms[0].token
    assert all(each.healthy for each in candidates), "both of them run"
    for each in candidates:
        each.stop()
    assert [job.result() for job in jobs] == [None] * 2
    assert not any(each.healthy for each in candidates)


def test_leaders_can_be_observed(scene: Scene) -> None:
    """Reference, election: leader() with its data, observe() as a stream that ends with its Locks."""
    name = scene.name()
    watching, other = scene.connect(ttl=30), scene.connect(ttl=30, owner="other")
    seen: list[Any] = []
    job = watching.election(name).observe(seen)
    eventually(lambda: seen == [None])
    candidate = other.election(name, data=[1])
    run = candidate.start()
    eventually(lambda: len(seen) == 2)
    assert (seen[1].owner, seen[1].data, seen[1].kind) == ("other", [1], "election")
    candidate.stop()
    assert run.result() is None
    eventually(lambda: seen[2:] == [None])
    watching.close()
    assert job.result() is None


def test_a_term_is_over_before_it_ends(scene: Scene) -> None:
    """Reference, election; promise 6: a leader that cannot renew is told to stop while its term still holds, its health
    check fails, and it stands again when the store is back."""
    locks, faults = scene.faulty()
    name, ttl = scene.name(), max(3.0, 2 * scene.ttl)
    candidate = locks.election(name, ttl=ttl, stop_before=ttl / 4)
    job = candidate.start()
    told = False
    for _ in range(5):  # on a machine that stands still for a while now and then
        eventually(lambda: candidate.is_leader)
        term = candidate.terms[-1]
        eventually(lambda: term.lease.remaining > ttl / 2, what="a full term")  # noqa: B023
        faults.lose_request("*", noticed_after=0.1)
        eventually(lambda: not candidate.healthy or not term.lease.valid)  # noqa: B023
        unhealthy = term.lease.valid  # else it stood still until its term was over, and has nothing to be ill of
        eventually(term.stopping.is_set)
        assert not candidate.is_leader
        told = unhealthy and "could not be renewed and expires in" in term.over
        faults.mend()
        eventually(lambda: candidate.is_leader, 3 * ttl + 30)
        assert candidate.terms[-1].token > term.token
        eventually(lambda: candidate.healthy)
        if told:
            break
    assert told, f"it was told too late: {term.over}"
    candidate.stop()
    assert job.result() is None


def test_a_broken_term_is_over_at_once(scene: Scene) -> None:
    """Reference, break_lease: the leader is told, stops, and stands again."""
    locks, other, name = scene.connect(ttl=30), scene.connect(ttl=30), scene.name()
    candidate = locks.election(name)
    job = candidate.start()
    eventually(lambda: candidate.is_leader)
    assert other.break_lease(name)
    eventually(lambda: len(candidate.terms) == 2)
    assert candidate.terms[0].over
    assert candidate.terms[1].token > candidate.terms[0].token
    candidate.stop()
    assert job.result() is None


def test_draining_ends_a_leadership(scene: Scene) -> None:
    """Reference, drain: the leader stops and gives its term back; who waits stands no longer; run returns."""
    locks, other, name = scene.connect(ttl=30), scene.connect(ttl=30), scene.name()
    leader, second = locks.election(name), other.election(name)
    leading = leader.start()
    eventually(lambda: leader.is_leader)
    waiting = second.start()
    scene.until_others_wait(name)
    assert locks.drain(10) == []
    assert leading.result() is None
    assert "drained" in leader.terms[0].over
    eventually(lambda: second.is_leader)
    assert other.drain(10) == []
    assert waiting.result() is None
    assert leader.start().error() is None, "it does not stand any more"
    with pytest.raises(ShuttingDown):
        locks.lock(name).acquire()


def test_wrong_options_of_an_election(scene: Scene) -> None:
    locks = scene.connect(ttl=30)
    with pytest.raises(ValueError, match="stop_before"):
        locks.election("x", ttl=3, stop_before=2.5)
    with pytest.raises(TypeError, match="min_hold"):
        locks.election("x", min_hold=3)
    candidate = locks.election(scene.name())
    job = candidate.start()
    eventually(lambda: candidate.is_leader)
    assert isinstance(candidate.start().error(), RuntimeError)
    candidate.stop()
    assert job.result() is None


@needs("shared")
@pytest.mark.slow
def test_a_killed_leader_is_replaced(scene: Scene) -> None:
    """L1: no leader for at most ttl + 1 s after a crash."""
    locks = scene.connect(ttl=scene.steady)

    def kill() -> float:
        name = scene.name()
        dead = scene.process()
        dead.do("stand", name=name, ttl=scene.steady)
        scene.until_held(name)
        candidate = locks.election(name)
        job = candidate.start()
        eventually(lambda: scene.waiters(name) or candidate.is_leader or not scene.store.fair)
        early = candidate.is_leader
        begun = time.monotonic()
        dead.kill()
        eventually(lambda: candidate.is_leader)
        took = time.monotonic() - begun
        candidate.stop()
        assert job.result() is None
        return float("inf") if early else took  # it stood still, and lost its term before it was killed

    in_time(kill, scene.steady + 1 + scene.store.slack)
