"""Candidates when something goes wrong: stopped before they stand, no thread to be had, a term that ends at any moment,
a fork."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio
from leasehold.testing.handles import eventually
from leasehold.testing.leases import Leases
from leasehold.testing.threads import refuse_threads

from .lines import AtLine


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


def test_stop_before_run_ends_the_run(url: str) -> None:
    """The thread that is to run the candidate may not have begun: the stop counts all the same, once."""
    with leasehold.connect(url) as locks:
        candidate = locks.election("leader")
        candidate.stop()
        assert candidate.run(lambda term: "led") is None
        assert candidate.run(lambda term: "led") == "led"


async def test_stop_before_run_ends_the_run_of_a_task(url: str) -> None:
    async def lead(term: object) -> str:
        return "led"

    async with aio.connect(url) as locks:
        candidate = locks.election("leader")
        running = asyncio.create_task(candidate.run(lead))
        candidate.stop()  # the task has yet to begin
        assert await running is None
        assert await candidate.run(lead) == "led"


def test_candidate_whose_callback_fails_because_of_stop_does_not_back_off(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def lead(term: Any) -> None:
        term.stopping.wait(30)
        raise OSError("cleanup failed")

    with leasehold.connect(url) as locks:
        candidate = locks.election("leader")
        thread = threading.Thread(target=candidate.run, args=(lead,))
        thread.start()
        eventually(lambda: candidate.is_leader)
        asked = time.monotonic()
        candidate.stop()
        thread.join()
    assert time.monotonic() - asked < 0.9, "the back-off would take 1 s"
    assert "the candidacy has ended: OSError: cleanup failed" in caplog.text


async def test_candidate_task_whose_callback_fails_because_of_stop_does_not_back_off(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    leads = asyncio.Event()

    async def lead(term: object) -> None:
        leads.set()
        try:
            await asyncio.sleep(30)
        finally:
            raise OSError("cleanup failed")

    async with aio.connect(url) as locks:
        candidate = locks.election("leader")
        running = asyncio.create_task(candidate.run(lead))
        await leads.wait()
        asked = time.monotonic()
        candidate.stop()
        assert await running is None
    assert time.monotonic() - asked < 0.9, "the back-off would take 1 s"
    assert "the candidacy has ended: OSError: cleanup failed" in caplog.text


def no_threads(patch: pytest.MonkeyPatch, *but: str) -> None:
    """As in a process that has as many as it may have; those that ``but`` names can be started."""
    refuse_threads(patch, lambda name: name not in but)


def test_election_without_a_thread_to_stop_the_leader_fails(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    led: list[object] = []
    with leasehold.connect(url) as locks:
        with pytest.MonkeyPatch.context() as patch:
            no_threads(patch)  # not even to ask the store
            with pytest.raises(RuntimeError, match="new thread"):
                locks.election("leader").run(led.append)
        no_threads(monkeypatch, "leasehold-keeper", "leasehold-timer", "leasehold-call")
        with pytest.raises(RuntimeError, match="new thread"):
            locks.election("leader").run(led.append)
        assert not led
        assert locks.inspect("leader") is None
        with pytest.raises(RuntimeError, match="new thread"):
            locks.group("g").on_joined(led.append)
        monkeypatch.undo()


def test_on_lost_is_called_though_no_thread_can_be_started(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[object] = []
    with leasehold.connect(url) as locks:
        lease = locks.lock("x", on_lost=told.append).acquire()
        no_threads(monkeypatch)
        assert locks.break_lease("x", force=True)
        eventually(lambda: told)
        assert told == [lease]
        assert "cannot start a thread" in caplog.text
        monkeypatch.undo()


def test_acquire_without_a_keeper_fails_and_the_next_one_starts_it(url: str) -> None:
    """Without that, a Locks that could once start no thread would never renew anything."""
    with leasehold.connect(url, ttl=60, renew_every=0.3) as locks:
        with pytest.MonkeyPatch.context() as patch:
            no_threads(patch, "leasehold-timer")
            with pytest.raises(RuntimeError, match="new thread"):
                locks.lock("x").acquire()
        with leasehold.connect(url) as other:
            assert eventually(lambda: other.lock("x").try_acquire(), what="nothing is left of it").release()
        lease = locks.lock("x").acquire()
        renewals = locks.counters().renewals
        eventually(lambda: locks.counters().renewals > renewals, what="it is renewed")
        assert lease.release()


def test_listeners_are_called_though_no_thread_can_be_started(url: str) -> None:
    told: list[str] = []
    with leasehold.connect(url) as locks:
        locks.on_event(lambda event: told.append(event.type))
        with pytest.MonkeyPatch.context() as patch:
            no_threads(patch, "leasehold-keeper", "leasehold-timer")
            assert locks.lock("x").acquire().release()
            assert told == ["acquired", "released"], "here and now"
        assert locks.lock("x").acquire().release()
        eventually(lambda: told[2:] == ["acquired", "released"])


@pytest.mark.parametrize("how", ["resign", "stop", "drain"])
def test_term_whose_callback_returns_during_a_resignation_ends_cleanly(
    how: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader's callback returns before any line of a call that is to end its term: that does no harm."""

    def lead(term: Any) -> str:
        terms.append(term)
        assert go_on.wait(60)
        return "led"

    told: list[bool] = []
    for place in itertools.count(1):
        terms: list[Any] = []
        results: list[object] = []
        go_on = threading.Event()
        with leasehold.connect(url) as locks:
            election = locks.election("leader")
            leader = threading.Thread(target=lambda: results.append(election.run(lead)))  # noqa: B023
            leader.start()
            eventually(lambda: terms)  # noqa: B023

            def end(go_on: threading.Event = go_on, leader: threading.Thread = leader) -> None:
                go_on.set()
                leader.join(60)

            with AtLine(place, end, within="election") as at:
                locks.drain(0) if how == "drain" else getattr(election, how)()
            end()
            told.append(terms[0].stopping.is_set())
            assert len(results) == 1, at.where
            assert results == ["led"] or told[-1], at.where
            assert not election.is_leader
        if not at.where:  # the callback returned after the call
            break
    assert told[0] is False
    assert told[-1] is True
    assert (results, len(terms)) == ((["led"], 2) if how == "resign" else ([None], 1))
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def never_begins(patch: pytest.MonkeyPatch, name: str) -> None:
    """As on a machine that is so busy that threads of that name have yet to run when everything is over."""
    start = threading.Thread.start
    patch.setattr(threading.Thread, "start", lambda thread: None if thread.name == name else start(thread))


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_leader_that_sees_by_itself_that_its_term_is_over_stands_again(
    how: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ``valid`` or ``check()``, which the clock answers: before the callback has been told to stop."""
    never_begins(monkeypatch, "leasehold-term")
    terms: list[Any] = []

    def lead(term: Any) -> str:
        terms.append(term)
        if len(terms) > 1:
            return "finished"
        assert locks.break_lease("leader", force=True)
        assert term.lease.lost.wait(60)
        assert not term.stopping.is_set()
        if how == "raises":
            term.check()
        assert not term.valid
        return "stopped"

    with leasehold.connect(url) as locks:
        assert locks.election("leader").run(lead) == "finished"
        assert len(terms) == 2
        assert terms[0].over == terms[0].lease.lost_reason is not None
        assert terms[0].stopping.is_set()
        assert terms[1].over is None


@pytest.mark.parametrize("how", ["returns", "raises"])
async def test_leading_task_that_sees_by_itself_that_its_term_is_over_stands_again(how: str, url: str) -> None:
    """It blocks the loop until its lease has expired: no other task could tell it to stop."""
    terms: list[Any] = []

    async def lead(term: Any) -> str:
        terms.append(term)
        if len(terms) > 1:
            return "finished"
        await asyncio.sleep(0.01)  # the task that is to tell it sleeps by then
        while term.lease.valid:
            time.sleep(0.01)
        assert not term.stopping.is_set()
        if how == "raises":
            term.check()
        assert not term.valid
        return "stopped"

    async with aio.connect(url) as locks:
        assert await locks.election("leader", ttl=0.5).run(lead) == "finished"
        assert len(terms) == 2
        assert terms[0].over == terms[0].lease.lost_reason is not None


def test_loss_of_another_lease_during_a_term_does_not_end_the_term(url: str) -> None:
    def lead(term: Any) -> None:
        other = locks.lock("other").acquire()
        assert locks.break_lease("other", force=True)
        assert other.lost.wait(60)
        other.check()

    with leasehold.connect(url) as locks, pytest.raises(leasehold.LeaseLost, match="'other'"):
        locks.election("leader", on_error="raise").run(lead)


def test_term_that_was_seen_to_be_over_stays_over(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late renewal that succeeds all the same does not revive the term: its callback may have stopped."""
    never_begins(monkeypatch, "leasehold-term")
    with leasehold.connect("memory://") as locks:

        def lead(term: Any) -> None:
            assert term.valid
            with leases.partition():
                leases.pause(26)
                assert term.lease.valid
                assert not term.valid
            term.lease.renew()
            assert term.lease.remaining > 29
            assert not term.valid
            election.stop()

        election = locks.election("leader", ttl=30, stop_before=5)
        assert election.run(lead) is None


def child_that(does: Callable[[], bool]) -> int:
    """A forked process that exits with 7 if it was so."""
    child = os.fork()
    if child == 0:
        outcome = 9
        try:
            outcome = 7 if does() else 8
        finally:
            os._exit(outcome)
    return child


def ended_well(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_of_a_leader_can_stand(tmp_path: Path) -> None:
    """What goes on in the parent, a term and a stop that came just before, does not go on in a forked child."""
    leads, go_on = threading.Event(), threading.Event()
    terms: list[Any] = []

    def lead(term: object) -> None:
        terms.append(term)
        leads.set()
        go_on.wait(60)

    def stand() -> bool:
        assert not election.healthy  # it does not run in the child
        assert not election.is_leader
        election.stop()
        assert election.run(lambda term: "led") is None
        return election.run(lambda term: (election.is_leader, election.healthy)) == (True, True)

    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as locks:
        election = locks.election("leader")
        leader = threading.Thread(target=election.run, args=(lead,))
        leader.start()
        assert leads.wait(60)
        assert locks.break_lease("leader", force=True)
        assert terms[0].lease.lost.wait(60)
        election.stop()
        assert not election.healthy
        child = child_that(stand)
        go_on.set()
        assert ended_well(child)
        leader.join(60)
        assert election.run(lambda term: "led") == "led"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_of_a_leading_task_can_stand(tmp_path: Path) -> None:
    leads, go_on = threading.Event(), threading.Event()
    locks = aio.connect(f"sqlite:///{tmp_path}/leases.db")
    election = locks.election("leader")

    async def lead(term: object) -> None:
        leads.set()
        while not go_on.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def lead_the_parent() -> None:
        async with locks:
            await election.run(lead)

    async def stand() -> bool:
        async def see(term: object) -> tuple[bool, bool]:
            return election.is_leader, election.healthy

        async with locks:
            return await election.run(see) == (True, True)

    leader = threading.Thread(target=asyncio.run, args=(lead_the_parent(),))
    leader.start()
    assert leads.wait(60)
    child = child_that(lambda: not election.healthy and not election.is_leader and asyncio.run(stand()))
    go_on.set()
    assert ended_well(child)
    leader.join(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_child_that_the_leader_forks_does_not_lead(tmp_path: Path) -> None:
    """The term is the parent's. In the child ``run`` returns, and can be called again."""
    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db", ttl=60) as locks:
        election, parent, pids = locks.election("leader"), os.getpid(), []

        def lead(term: Any) -> str:
            pids.append(os.fork())
            return "led" if term.valid else "did not"

        outcome = 9
        try:
            result = election.run(lead)
            if os.getpid() != parent:
                outcome = 7 if result is None and election.run(lambda term: "led") == "led" else 8
        finally:
            if os.getpid() != parent:
                os._exit(outcome)
        assert result == "led"
        assert ended_well(pids[0])
