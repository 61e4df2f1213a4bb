"""Simulated worlds, from seeds. ``SEEDS=5000`` for more, ``FIRST=1000`` to begin there, ``SEED=17`` for one."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from leasehold import aio
from leasehold.core.claim import OFFERED
from leasehold.core.entry import Entry
from leasehold.core.lease import BaseLease
from leasehold.testing.inside import core, deadline

from .naive import NaiveClient
from .run import KINDS, Simulation, simulate
from .store import Server
from .workload import Client

GROUP = 10
FIRST = int(os.environ.get("SEED", os.environ.get("FIRST", "0")))
LAST = FIRST + (1 if "SEED" in os.environ else int(os.environ.get("SEEDS", "200")))


@pytest.mark.parametrize("first", range(FIRST, LAST, GROUP))
def test_no_world_breaks_the_promises(first: int, record_property: Any) -> None:
    """Exclusion, order of tokens, no theft, no leak, liveness, loss is told: whatever the network and clocks do."""
    simulated, began = 0.0, time.process_time()
    for seed in range(first, min(first + GROUP, LAST)):
        result = simulate(seed)
        assert not result.violations, result.story()
        assert result.grants > 10, f"seed {seed} shows little: {result.grants} grants"
        simulated += result.simulated
    record_property("simulated", (simulated, time.process_time() - began))  # see conftest.py
    gc.collect()


LOOP, OF_A_LOOP = 10_000_000, 0.13
"""So many steps of an empty loop take so many seconds of CPU time on a machine that the figure is of."""


def slower() -> float:
    """How many times slower than such a machine this one is now, if it is."""
    began = time.thread_time()
    for _ in range(LOOP):
        pass
    return max(1.0, (time.thread_time() - began) / OF_A_LOOP)


def test_worlds_pass_much_faster_than_real_time() -> None:
    """500 times and more, each kind of world counted once: in CPU time of this thread, so that a loaded machine does
    not matter, nor what other tests have left running; nor does a slow one."""
    ratios = []
    for _ in range(10):  # what shares a core with others may be slow for a while all the same
        began = time.thread_time()
        simulated = sum(simulate(5 * kind + kind % 5).simulated for kind in range(len(KINDS)))
        ratios.append(simulated / (time.thread_time() - began) * slower())
        if ratios[-1] >= 500:
            return
    pytest.fail(f"{ratios} times")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_world_shows_something(kind: str) -> None:
    """Nothing is judged of what does not happen."""
    simulation = Simulation(5 * KINDS.index(kind) + 1)
    assert simulation.run().kind == kind
    history = simulation.world.history
    names = [each for each in simulation.counters if kind in ("lock", "rlock", "all_of") or each != "a"]
    taken = [each for each in history if each.op == "acquire" and each.outcome == "granted"]
    assert sum(each.name.split()[0] in names for each in taken) > 10
    shown = {(each.op, each.outcome) for each in history if each.name.split()[0] in names}
    assert ("check", "valid") in shown
    if kind == "once":
        assert ("done", "done") in shown
    if kind == "group":
        assert ("gone", "") in shown
    if kind == "rwlock":
        assert {each.weight for each in taken if each.name == kind} == {1, simulation.counters[kind].limit}


def test_a_story_is_told_around_the_first_violation() -> None:
    result = simulate(1, NaiveClient)
    head, _, lines = result.story().partition("the first violation:\n")
    times = [float(line.split()[0]) for line in lines.splitlines()]
    assert len(times) == 30
    assert times[0] < result.first < times[-1] < result.simulated - 50
    [overlap] = [line for line in head.splitlines() if line.startswith("overlap: 'a'")]  # one of each kind
    found = [each for each in result.violations if (each.rule, each.name) == ("overlap", "a")]
    assert f"(and {len(found) - 1} like it)" in overlap
    assert "server" in lines
    assert "simulation.run 1" in head


class Breaks(Client):
    def observe(self) -> None:
        raise ZeroDivisionError("in the middle")


class Spins(Client):
    async def work(self, number: int) -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.parametrize(("client", "says"), [(Breaks, "in the middle"), (Spins, "time stands still at 0.000: p0")])
def test_a_world_that_does_not_end_names_its_seed(client: type[Client], says: str) -> None:
    with pytest.raises((ZeroDivisionError, RuntimeError), match=says) as caught:
        simulate(7, client)
    assert "python -m simulation.run 7" in caught.value.__notes__[0]


def finds(says: str, client: type[Client] = Client, seeds: range = range(1, 40)) -> bool:
    """Whether one of these worlds is refused with such words: most need a few."""
    return any(says in str(each) for seed in seeds for each in simulate(seed, client).violations)


def test_a_loss_that_is_never_told_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio.Lease, "on_lost", lambda lease, callback: None)  # it takes the callback, and never calls it
    assert finds("was not told")


def until_its_deadline(lease: Any) -> bool:
    return core(lease).now() < deadline(lease)


def test_a_lease_that_is_valid_after_its_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio.Lease, "valid", property(until_its_deadline))
    assert finds("not in the store")


class Leaks(Client):
    """Says that it gave up, and is kept."""

    async def take(self, name: str, ask: str) -> Any:
        self.given_back.append(await self.lock(name, ttl=4.0, data=ask).acquire())
        self.world.history.add("acquire", name, owner=ask, outcome="cancelled", ask=ask, limit=20.0)
        await asyncio.sleep(100.0)


def test_an_acquire_that_failed_and_holds_is_found() -> None:
    assert finds("not settled", Leaks, range(1))


# What people do on purpose, and the clock that goes back: each rule can fail.


HAPPENS = {
    *("break of a: True", "break of a by force: True", "offers a", "accepts a", "drains, ", "is drained", "jumps by -"),
    *(
        "lost: no beat() came",
        "lost: max_hold was reached",
        "lost: it was broken",
        "lost: its Locks was drained",
    ),
}


def test_every_disturbance_and_every_loss_happens_in_some_world() -> None:
    """Nothing is judged of what does not happen."""
    missing = set(HAPPENS)
    for seed in range(1, 40):
        said = [what for _, _, what in simulate(seed).trace]
        missing -= {each for each in missing if any(each in what for what in said)}
        if not missing:
            return
    pytest.fail(f"{missing} did not happen")


def test_broken_lease_that_goes_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Entry, "interrupt", lambda *_: True)  # it says so, and does nothing
    assert finds("which was broken")


def test_two_holders_after_a_break_are_excused_by_force_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one documented exception: without it, what force does would be found."""
    note = Server.note_break
    monkeypatch.setattr(Server, "note_break", lambda server, name, holder, force: note(server, name, holder, False))
    assert finds("not in the store")


def test_holder_that_trusts_an_offered_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    valid: Any = vars(BaseLease)["valid"]

    def trusting(lease: Any) -> bool:
        return valid.fget(lease) or (lease.lost_reason == OFFERED and until_its_deadline(lease))

    monkeypatch.setattr(BaseLease, "valid", property(trusting))
    assert finds("overlap")


def test_what_a_drain_leaves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drain(locks: Any, grace: float) -> list[str]:
        return []

    monkeypatch.setattr(aio.Locks, "drain", drain)
    assert finds("of a Locks that was drained")


def test_a_drain_that_does_not_end_in_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    drain = aio.Locks.drain

    async def too_long(locks: Any, grace: float) -> list[str]:
        late = await drain(locks, grace)
        await asyncio.sleep(30.0)
        return late

    monkeypatch.setattr(aio.Locks, "drain", too_long)
    assert finds("drained after")


ENDS = ("max_hold", "beat_every")


class RenewsForEver(Client):
    """Asks for leases that end after a while or in silence; what it gets is renewed for as long as it is held."""

    def lock(self, name: str, **options: Any) -> Any:
        return super().lock(name, **{each: value for each, value in options.items() if each not in ENDS})


def test_a_lease_that_is_renewed_beyond_its_max_hold_or_in_silence_is_found() -> None:
    assert finds("not to be renewed any more", RenewsForEver)


def test_a_naive_lock_is_refused() -> None:
    """The negative control: the same worlds, with a lock without token and deadline, and an unfenced counter."""
    rules = {each.rule for seed in range(1, 10) for each in simulate(seed, NaiveClient).violations}
    assert {"overlap", "lost write", "theft"} <= rules


def test_what_a_store_that_forgets_cannot_keep() -> None:
    """A server that loses its records, or whose clock jumps: two may believe in the name; no write is lost."""
    rules = {each.rule for seed in range(4, 60, 5) for each in Simulation(seed).run(strict=True).violations}
    assert "overlap" in rules
    # "revived": a clock that jumps also ends the term of a holder that was broken, before the holder has heard of it.
    assert rules <= {"overlap", "not in the store", "theft", "not gone", "revived"}


def test_a_seed_gives_the_same_world_again() -> None:
    """Else a failure could not be replayed. In processes of their own: nothing may depend on the hash seed."""
    worlds = [
        subprocess.run(
            [sys.executable, "-m", "simulation.run", "3"],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.partition("\n")[2]
        for hashing in ("1", "2")
    ]
    assert worlds[0] == worlds[1]
    assert "granted" in worlds[0]
