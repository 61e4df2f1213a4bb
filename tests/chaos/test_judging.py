"""What chaos itself adds to the judge finds what it is there for."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

import leasehold
from leasehold.core import timing
from leasehold.testing.history import History, Record

from .judging import AFTERMATH, LOADED, UNDER_WAY, judge, latencies, refused_too_soon, steps_seen, takeovers
from .making import FULL
from .report import counts, matrix
from .resource import Counters
from .run import full
from .stores import STORES, TTL, setup_of
from .watching import Watch, in_use, see_that_all_is_gone, see_that_nobody_waits


def test_a_write_that_is_refused_right_after_a_valid_check_is_an_overlap() -> None:
    check = Record("check", "a", "w1.1", 5, 10.0, 10.0, "valid")
    refused = Record("write", "a", "w1.1", 5, 10.01, 10.01, "refused")
    assert [each.rule for each in refused_too_soon([check, refused])] == ["overlap"]
    assert refused_too_soon([check, refused._replace(returned=10.2)]) == []  # it was stopped in between, say


def test_a_holder_that_nobody_replaces_is_missed() -> None:
    grant = Record("acquire", "a", "w1.1", 5, 0.0, 0.1, "granted")
    kill = Record("fault", "a", "w1", 5, 1.0, 1.0, "kill", limit=0.0)
    other = Record("acquire", "b", "w2.1", 5, 9.0, 9.0, "granted")
    (took,) = takeovers([grant, kill, other], late=1.0)
    assert (took.op, took.returned, took.limit) == ("took", 9.0, TTL + 1.0)
    assert takeovers([grant, kill, other._replace(returned=1.5)], late=1.0) == []  # there was no time for it
    (took,) = takeovers([grant, kill, grant._replace(token=6, returned=1.9), other], late=1.0)
    assert took.returned == 1.9


def test_takeover_by_a_worker_told_to_end_is_excused() -> None:
    kill = Record("fault", "a", "w1", 5, 1.0, 1.0, "kill", limit=0.0)
    rest = Record("fault", "-", "", 0, 2.0, 2.0, "rest")

    def disturbed(at: float) -> str:
        (took,) = takeovers([kill, rest, Record("acquire", "a", "w2.1", 6, 1.0, at, "granted")], late=1.0)
        return took.outcome

    assert disturbed(9.0) == "rest"
    assert disturbed(1.9) == ""


def test_report_counts_takeovers_after_the_end_of_an_earlier_run() -> None:
    before = Record("fault", "-", "", 0, 0.5, 0.5, "rest")
    kill = Record("fault", "a", "w1", 5, 1.0, 1.0, "kill", limit=0.0)
    next_one = Record("acquire", "a", "w2.1", 6, 1.0, 1.9, "granted")
    assert latencies([before, kill, next_one])["takeover"] == [pytest.approx(0.9 - TTL)]
    assert takeovers([before, kill, next_one], late=1.0)[0].outcome == ""


def test_end_of_all_workers_long_after_a_takeover_was_due_is_no_excuse(tmp_path: Path) -> None:
    Counters(tmp_path / "resource.db").create(["a"])
    grant = Record("acquire", "a", "w1.1", 5, 0.5, 0.6, "granted", "w1.1")
    kill = Record("fault", "a", "w1", 5, 1.0, 1.0, "kill", limit=0.0)
    rest = Record("fault", "-", "", 0, 12.0, 12.0, "rest")
    late = Record("acquire", "a", "w2.1", 6, 12.0, 12.1, "granted", "w2.1")
    never = late._replace(token=0, outcome="busy")
    for last in (late, never):
        assert [each.rule for each in judge("redis", [grant, kill, rest, last], tmp_path)] == ["too slow"]


def test_takeover_names_the_fault_that_may_have_disturbed_it() -> None:
    kill = Record("fault", "a", "w1", 5, 1.0, 1.0, "kill", limit=0.0)
    after = Record("acquire", "a", "w2.1", 6, 2.0, 2.0, "granted")

    def beside(name: str, outcome: str, at: float, limit: float = 1.0) -> str:
        (took,) = takeovers([kill, Record("fault", name, "w3", 7, at, at, outcome, limit=limit), after])
        return took.outcome

    assert beside("a", "pause", 0.5) == "pause"
    assert beside("b", "pause", 0.5) == "", "who is stopped with another name is not waiting for this one"
    assert beside("b", "cut", 0.5) == "cut"
    assert beside("b", "cut", 1.0 + TTL + 1) == "", "it was due by then"
    assert beside("b", "wall", 1.0) == ""
    assert beside("-", "server", -5.0) == "server"
    assert beside("-", "clock", -5.0, limit=-300.0) == "clock"


def test_a_clock_that_was_set_shows_in_the_tokens() -> None:
    def grant(at: float, wall: float) -> Record:
        return Record("acquire", "a", "w", int(wall * 1e6), at, at, "granted")

    steps = [Record("fault", "-", "", 0, at, at, "clock", limit=limit) for at, limit in [(2.0, 200.0), (5.0, -100.0)]]
    assert steps_seen([*steps, grant(1, 1001), grant(3, 1203), grant(4, 1204), grant(6, 1204.000001)]) == 1
    assert steps_seen([*steps, grant(1, 1001), grant(3, 1003), grant(6, 1006)]) == 0, "the server has not seen it"


# What is settled, and what is left over.

LIMIT = TTL + setup_of("redis").late + LOADED
"""Of what nothing else has held up."""
GAVE_UP = Record("acquire", "a", "w1.7", 0, 9.0, 10.0, "busy", "w1.7")
GAVE_BACK = Record("release", "a", "w1.7", 5, 9.0, 10.0, "unknown", "w1.7")
KILLED = Record("fault", "a", "w1", 5, 10.0, 10.0, "kill", limit=0.0)


def rules(tmp_path: Path, *records: Record, store: str = "redis") -> list[str]:
    """What the judge of chaos finds in a history of nothing but these."""
    if not (tmp_path / "resource.db").exists():
        Counters(tmp_path / "resource.db").create(["a"])
    return [each.rule for each in judge(store, list(records), tmp_path)]


def seen(at: float, token: int = 5) -> Record:
    return Record("seen", "a", "w1", token, at, at + 0.1, ask="w1.7")


@pytest.mark.parametrize("ended", [GAVE_UP, GAVE_BACK], ids=["acquire", "release"])
def test_hold_after_an_unanswered_request_is_found(tmp_path: Path, ended: Record) -> None:
    assert rules(tmp_path, ended, seen(10.0 + LIMIT - 0.01)) == []
    assert rules(tmp_path, ended, seen(10.0 + LIMIT + 0.01)) == ["not settled"]
    other = seen(10.0 + LIMIT + 0.01)._replace(ask="w1.8")
    assert rules(tmp_path, ended, other) == [], "another of the same worker"
    stepped = rules(tmp_path, ended, seen(100.0), store="valkey-clock")
    assert stepped == [], "a server whose clock is set back keeps it until then"


@pytest.mark.parametrize(("outcome", "owner", "more"), [("cut", "w1", UNDER_WAY), ("server", "", AFTERMATH)])
def test_request_held_up_by_a_fault_is_given_as_much_longer(
    tmp_path: Path, outcome: str, owner: str, more: float
) -> None:
    fault = Record("fault", "a", owner, 5, 9.5, 9.5, outcome, limit=1.0)
    assert rules(tmp_path, fault, GAVE_UP, seen(10.0 + LIMIT + more - 0.01)) == []
    assert rules(tmp_path, fault, GAVE_UP, seen(10.0 + LIMIT + more + 0.01)) == ["not settled"]
    before = fault._replace(invoked=-20.0, returned=-20.0)
    assert rules(tmp_path, before, GAVE_UP, seen(10.0 + LIMIT + 0.01)) == ["not settled"], "it was long over"


def test_hold_of_a_killed_worker_is_found(tmp_path: Path) -> None:
    assert rules(tmp_path, KILLED, seen(10.0 + LIMIT - 0.01)) == []
    assert rules(tmp_path, KILLED, seen(10.0 + LIMIT + 0.01)) == ["not settled"]
    queued = LIMIT - TTL + timing.WAITER_TTL + timing.FIRST_TERM
    assert rules(tmp_path, KILLED, seen(10.0 + queued - 0.01, token=6)) == [], "granted to its place in the queue"
    assert rules(tmp_path, KILLED, seen(10.0 + queued + 0.01, token=6)) == ["not settled"]


def test_a_name_that_is_had_too_late_at_the_end_is_found(tmp_path: Path) -> None:
    def had(after: float) -> Record:
        return Record("took", "a", "last", 9, 30.0, 30.0 + after, limit=TTL + 20.0)

    assert rules(tmp_path, had(LIMIT - 0.01)) == []
    assert rules(tmp_path, had(LIMIT + 0.01)) == ["too slow"]
    server = Record("fault", "-", "", 0, 29.0, 29.0, "server")
    assert rules(tmp_path, server, had(TTL + 19.0)) == [], "it had just come back"
    assert rules(tmp_path, server, had(TTL + 21.0)) == ["too slow"]
    gave_back = Record("release", "a", "w1.7", 5, 28.0, 28.0, "released", "w1.7")
    waiter = KILLED._replace(invoked=29.0, returned=29.0)
    assert rules(tmp_path, gave_back, waiter, had(LIMIT + 0.9)) == [], "it had given back, and may have been waiting"
    assert rules(tmp_path, gave_back, waiter, had(LIMIT + 1.1)) == ["too slow"]


@pytest.mark.parametrize("what", ["socket", "thread"])
def test_what_a_closed_worker_leaves_behind_is_found(tmp_path: Path, what: str) -> None:
    history, over = History(), threading.Event()
    left = threading.Thread(target=over.wait, name="leasehold-keeper")
    before = in_use()
    see_that_all_is_gone(history, "w1", before)
    assert list(history) == []
    with socket.socket() if what == "socket" else nullcontext():
        if what == "thread":
            left.start()
        see_that_all_is_gone(history, "w1", before, patience=0.0)
        over.set()
    assert rules(tmp_path, *history) == ["left over"]
    assert what in history.records[0].outcome
    if what == "thread":
        left.join()


def test_waiter_that_is_left_in_a_queue_is_found(tmp_path: Path) -> None:
    """And a look finds who holds a name, by which its judge knows it."""
    url, history, over = f"sqlite:///{tmp_path}/leases.db", History(), threading.Event()
    with leasehold.connect(url, namespace="chaos", ttl=60) as locks:
        lease = locks.lock("a", data="w1.7").acquire()
        watch = Watch(url, history)
        watch.look()
        watch.close()
        assert [(each.op, each.ask, each.token) for each in history] == [("seen", "w1.7", lease.token)]
        see_that_nobody_waits(locks, "a", history, 0.0)
        assert len(history) == 1

        def wait() -> None:
            with pytest.raises(leasehold.AcquireCancelled):
                locks.lock("a").acquire(timeout=60, cancel=over)

        waiter = threading.Thread(target=wait)
        waiter.start()
        while not getattr(locks.inspect("a"), "waiters", 0):
            over.wait(0.01)
        see_that_nobody_waits(locks, "a", history, 0.0)
        over.set()
        waiter.join()
        lease.release()
    assert rules(tmp_path, *history) == ["left over"]


def keep(folder: Path, store: str, calm: bool, *records: Record) -> Path:
    """A history as a run would have left it, with those records of it."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"store": store, "calm": calm, "commit": "c0ffee, 2026-01-01"}))
    (folder / "resource.db").touch()
    history = History(folder / "w1.history")
    for each in [*records, Record("took", "a", "last", 99, 90, 90, limit=20.0)]:
        history.add(**each._asdict())
    history.close()
    return folder


def some(count: int, outcome: str, op: str = "fault") -> list[Record]:
    return [Record(op, "a", "w1.1", at + 1, at, at, outcome) for at in range(count)]


def test_a_full_run_goes_on_from_what_is_kept(tmp_path: Path) -> None:
    goals = setup_of("redis").goals
    assert [(what, plan.goals) for what, plan in full("redis", tmp_path)] == [
        ("calm", goals._replace(**dict.fromkeys(goals._fields[:-1], 0))),
        ("faults", goals._replace(grants_of_50=0)),
    ]
    enough = some(goals.grants_of_50, "granted", "acquire")
    keep(tmp_path / "redis-calm-1", "redis", True, *enough, *some(3000, "accepted", "write"))
    keep(tmp_path / "redis-faults-1", "redis", False, *enough[:1], *some(60, "pause"), *some(20, "server"))
    keep(tmp_path / "redis-sentinel-faults-1", "redis-sentinel", False, *enough[:1], *some(50, "kill"))
    keep(tmp_path / "redis-faults-2", "redis", False, *enough[:1], *some(50, "kill"))
    history = tmp_path / "redis-faults-2" / "w1.history"
    history.write_text(history.read_text().rpartition('["took"')[0])  # it was broken off
    left = goals._replace(writes=7000, pauses=40, server_kills=0, grants_of_50=0)
    assert full("redis", tmp_path) == [("faults", FULL._replace(goals=left))]


def test_matrix_names_the_goals_that_are_not_met() -> None:
    shown = {store: setup_of(store).goals for store in STORES}
    assert matrix(shown, {}).endswith("all of it is met")
    assert matrix(shown, {"mysql": ["too late"]}).endswith("not met: mysql: too late")
    short = matrix({**shown, "redis": shown["redis"]._replace(kills=49)}, {})
    assert "| 49 / 50 |" in short
    assert short.endswith("not met: redis lacks 1 kills")
    grants = [Record("acquire", "a", "w1.1", 1, 0, 0, "granted")]
    assert counts([*grants, *some(2, "pause")], calm=False).pauses == 2
