"""What chaos itself adds to the judge finds what it is there for."""

from __future__ import annotations

import json
from pathlib import Path

from leasehold.testing.history import History, Record

from .judging import refused_too_soon, steps_seen, takeovers
from .making import FULL
from .report import counts, matrix
from .run import full
from .stores import STORES, TTL, setup_of


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


def test_what_may_have_disturbed_a_takeover_is_said() -> None:
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


def test_what_is_not_met_is_said() -> None:
    shown = {store: setup_of(store).goals for store in STORES}
    assert matrix(shown, {}).endswith("all of it is met")
    assert matrix(shown, {"mysql": ["too late"]}).endswith("not met: mysql: too late")
    short = matrix({**shown, "redis": shown["redis"]._replace(kills=49)}, {})
    assert "| 49 / 50 |" in short
    assert short.endswith("not met: redis lacks 1 kills")
    grants = [Record("acquire", "a", "w1.1", 1, 0, 0, "granted")]
    assert counts([*grants, *some(2, "pause")], calm=False).pauses == 2
