"""Candidates where it gets tight: stopped before they stand, no thread to be had, who sees first that it is over."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio, effects
from leasehold.election_threads import Term
from leasehold.testing.handles import eventually
from leasehold.testing.threads import refuse_threads


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


def test_stop_before_run(url: str) -> None:
    """The thread that is to run it may not have begun: its stop counts all the same, once."""
    with leasehold.connect(url) as locks:
        candidate = locks.election("leader")
        candidate.stop()
        assert candidate.run(lambda term: "led") is None
        assert candidate.run(lambda term: "led") == "led"


async def test_stop_before_run_in_a_task(url: str) -> None:
    async def lead(term: object) -> str:
        return "led"

    async with aio.connect(url) as locks:
        candidate = locks.election("leader")
        running = asyncio.create_task(candidate.run(lead))
        candidate.stop()  # the task has yet to begin
        assert await running is None
        assert await candidate.run(lead) == "led"


def no_threads(patch: pytest.MonkeyPatch, *but: str) -> None:
    """As in a process that has as many as it may have; those that ``but`` names can be started."""
    refuse_threads(patch, lambda name: name not in but)


def test_nobody_leads_whom_nobody_can_stop(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_loss_is_told_though_no_thread_can_be_had(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[object] = []
    with leasehold.connect(url) as locks:
        lease = locks.lock("x", on_lost=told.append).acquire()
        no_threads(monkeypatch)
        locks._core.lose(lease, "as its keeper would hear")
        assert told == [lease]
        assert "no thread can be started" in caplog.text
        monkeypatch.undo()


def test_without_a_keeper_there_is_no_lease_and_later_there_is(url: str) -> None:
    """Who could start no thread once must not think for ever that it has a keeper: nothing would be renewed."""
    with leasehold.connect(url, ttl=60, renew_every=0.3) as locks:
        with pytest.MonkeyPatch.context() as patch:
            no_threads(patch, "leasehold-timer")
            with pytest.raises(RuntimeError, match="new thread"):
                locks.lock("x").acquire()
        with leasehold.connect(url) as other:
            assert eventually(lambda: other.lock("x").try_acquire(), what="nothing is left of it").release()
        lease = locks.lock("x").acquire()
        sent = lease._sent
        eventually(lambda: lease._sent > sent, what="it is renewed")
        assert lease.release()


def test_events_are_told_though_no_thread_can_be_had(url: str) -> None:
    told: list[str] = []
    with leasehold.connect(url) as locks:
        locks.on_event(lambda event: told.append(event.type))
        with pytest.MonkeyPatch.context() as patch:
            no_threads(patch, "leasehold-keeper", "leasehold-timer")
            assert locks.lock("x").acquire().release()
            assert told == ["acquired", "released"], "here and now"
        assert locks.lock("x").acquire().release()
        eventually(lambda: told[2:] == ["acquired", "released"])


@pytest.mark.parametrize("how", ["resign", "stop", "_drained"])
def test_a_term_that_ends_while_it_is_being_ended(how: str, url: str) -> None:
    """The thread that leads comes to its end between two looks of one that wants it to."""
    with leasehold.connect(url) as locks:
        election = locks.election("leader")

        class Ending(type(election)):  # type: ignore[misc]
            looks = 0

            @property
            def _term(self) -> Any:
                self.looks += 1
                return term if self.looks == 1 else None

        term = Term(locks.lock("leader").acquire(), 1.0)
        election.__class__ = Ending
        getattr(election, how)()
        assert term.stopping.is_set()


def nobody_tells(patch: pytest.MonkeyPatch, module: str) -> None:
    """What is to tell the callback to stop does not come to it in time: its thread, or its task, has yet to run."""

    def watch(core: Any, term: Any) -> Any:
        bell = core.new_bell()
        while not term.finished:
            yield effects.Wait(bell, 0.02)

    patch.setattr(f"leasehold.{module}.watch", watch)


def loses_its_first(locks: Any, terms: list[Any], term: Any, how: str) -> str:
    """What a leader does that loses its first term and sees so by itself."""
    terms.append(term)
    if len(terms) > 1:
        return "finished"
    locks._core.lose(term.lease, "as its keeper would hear")
    if how == "raises":
        term.check()
    assert not term.valid
    return "stopped"


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_who_sees_by_itself_that_its_term_is_over_stands_again(
    how: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ``valid`` or ``check()``, which the clock answers: before anybody has come to tell it."""
    nobody_tells(monkeypatch, "election_threads")
    terms: list[Any] = []

    def lead(term: Any) -> str:
        return loses_its_first(locks, terms, term, how)

    with leasehold.connect(url) as locks:
        assert locks.election("leader").run(lead) == "finished"
        assert len(terms) == 2
        assert terms[0].over == "as its keeper would hear"
        assert terms[0].stopping.is_set()
        assert terms[1].over is None


@pytest.mark.parametrize("how", ["returns", "raises"])
async def test_a_task_that_sees_by_itself_that_its_term_is_over(
    how: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody_tells(monkeypatch, "election_tasks")
    terms: list[Any] = []

    async def lead(term: Any) -> str:
        return loses_its_first(locks, terms, term, how)

    async with aio.connect(url) as locks:
        assert await locks.election("leader").run(lead) == "finished"
        assert len(terms) == 2
        assert terms[0].over == "as its keeper would hear"


def test_another_lease_that_is_lost_in_a_term_is_no_end_of_it(url: str) -> None:
    def lead(term: Any) -> None:
        other = locks.lock("other").acquire()
        locks._core.lose(other, "another's")
        other.check()

    with leasehold.connect(url) as locks, pytest.raises(leasehold.LeaseLost, match="another's"):
        locks.election("leader").run(lead)


def test_a_term_that_was_seen_to_be_over_stays_so(url: str) -> None:
    """A renewal that comes late and succeeds all the same: who was told that it leads no longer may have stopped."""
    with leasehold.connect(url) as locks:

        def lead(term: Any) -> None:
            assert term.valid
            lease = term.lease
            deadline, lease._deadline = lease._deadline, locks._core.now()
            assert not term.valid
            lease._deadline = deadline
            assert lease.valid
            assert not term.valid
            election.stop()

        election = locks.election("leader")
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
def test_the_child_of_a_leader_can_stand(tmp_path: Path) -> None:
    """What went on in the parent, a term and a stop that came just before, does not go on in a forked child."""
    leads, go_on = threading.Event(), threading.Event()

    def lead(term: object) -> None:
        leads.set()
        go_on.wait(60)

    def stand() -> bool:
        assert election.healthy
        assert not election.is_leader
        election.stop()
        assert election.run(lambda term: "led") is None
        return election.run(lambda term: (election.is_leader, election.healthy)) == (True, True)

    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as locks:
        election = locks.election("leader")
        leader = threading.Thread(target=election.run, args=(lead,))
        leader.start()
        assert leads.wait(60)
        locks._core.lose(election._term.lease, "as its keeper would hear")  # type: ignore[union-attr]
        election.stop()
        assert not election.healthy
        child = child_that(stand)
        go_on.set()
        assert ended_well(child)
        leader.join(60)
        assert election.run(lambda term: "led") == "led"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_the_child_of_a_task_that_leads_can_stand(tmp_path: Path) -> None:
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
    child = child_that(lambda: election.healthy and not election.is_leader and asyncio.run(stand()))
    go_on.set()
    assert ended_well(child)
    leader.join(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_that_is_forked_by_the_leader_does_not_lead(tmp_path: Path) -> None:
    """Its term is the parent's; the ``run`` that it comes out of ends, and can be called again."""
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
