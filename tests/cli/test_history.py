"""``leasehold history`` and ``forget``, and ``once --per``."""

from __future__ import annotations

import json
import re

from intercept import Intercepted

from .shell import Shell


def test_history_lists_what_was_done(shell: Shell) -> None:
    assert shell.do("once", "x", "--version", "1", "true").returncode == 0
    assert shell.do("once", "x", "--version", "two", "--owner", "me", "sh", "-c", "exit 3").returncode == 3
    table = shell.do("history", "x")
    head, first, second = table.stdout.splitlines()
    assert head.split() == ["VERSION", "STATUS", "OWNER", "TOKEN", "STARTED", "TOOK", "ERROR"]
    assert first.split()[:2] == ["1", "done"]
    assert second.split()[:3] == ["two", "failed", "me"]
    assert second.endswith("ExitStatus: 3")
    found = json.loads(shell.do("history", "x", "--json").stdout)
    assert [(each["version"], each["status"], each["result"]) for each in found] == [
        ("1", "done", 0),
        ("two", "failed", 3),
    ]
    assert found[0]["started"] < found[0]["finished"] < found[1]["started"]
    nothing = shell.do("history", "y")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "no outcome of 'y' is recorded" in nothing.stderr
    assert json.loads(shell.do("history", "y", "--json").stdout) == []


def test_history_keeps_the_last_outcomes(shell: Shell) -> None:
    for version in ("1", "2", "3"):
        assert shell.do("once", "x", "--keep", "2", "--version", version, "true").returncode == 0
    assert [each["version"] for each in json.loads(shell.do("history", "x", "--json").stdout)] == ["2", "3"]
    again = shell.do("once", "x", "--version", "1", "--", "echo", "ran")
    assert (again.returncode, again.stdout) == (0, "")
    assert "'x' version 1 was already done long ago" in again.stderr


def test_forget_says_of_a_slot_whether_it_runs_again(shell: Shell) -> None:
    first, second = (outcome_of(shell, per=1) for _ in range(2))
    done = shell.do("forget", "x", first)
    assert (done.returncode, done.stdout) == (
        0,
        f"'x' version {first} is forgotten; it does not run again, as a later slot, {second}, is recorded\n",
    )
    assert shell.do("forget", "x", second).stdout == f"'x' version {second} is forgotten: it runs again\n"


def outcome_of(shell: Shell, per: int) -> str:
    """The next slot, which is run."""
    while not (outcome := shell.locks.once("x", per=per).run(lambda: None)).ran:
        pass
    return outcome.version


def test_forget_makes_a_command_run_again(shell: Shell) -> None:
    for version in ("1", "2"):
        shell.do("once", "x", "--version", version, "true")
    forgotten = shell.do("forget", "x", "1")
    assert (forgotten.returncode, forgotten.stdout) == (0, "'x' version 1 is forgotten: it runs again\n")
    again = shell.do("forget", "x", "1")
    assert (again.returncode, again.stderr) == (1, "leasehold: no outcome of 'x' version 1 is recorded\n")
    assert shell.do("once", "x", "--version", "1", "echo", "ran").stdout == "ran\n"
    empty = shell.do("forget", "x", "")
    assert (empty.returncode, "VERSION is empty" in empty.stderr) == (2, True), "it is not all versions"
    assert shell.do("forget", "x").stdout == "'x' is forgotten (all versions, 2): it runs again\n"
    assert shell.do("history", "x").stdout == ""
    assert shell.do("forget", "x").returncode == 1


def test_command_runs_once_per_slot(shell: Shell) -> None:
    first = shell.do("once", "x", "--per", "day", "echo", "ran")
    again = shell.do("once", "x", "--per", "1d", "echo", "ran")
    if "already done" in again.stderr:  # not at midnight
        assert (first.stdout, again.stdout, again.returncode) == ("ran\n", "", 0)
        assert re.search(r"'x' version \d{4}-\d\d-\d\dT00:00:00Z was already done", again.stderr)
    (*_, found) = json.loads(shell.do("history", "x", "--json").stdout)
    assert shell.do("forget", "x", found["version"]).returncode == 0
    assert shell.do("once", "x", "--per", "day", "echo", "ran").stdout == "ran\n"


def test_slot_that_is_too_far_ahead_is_refused(shell: Shell) -> None:
    """SQLite has no clock of its own. Another machine has recorded the last slot."""
    slots = {"last": 1_700_000_000, "machine": ["boot", 0], "ahead": {}, "accepted": None, "outcomes": {}}
    store = Intercepted(shell.url)
    with store.connect() as locks, locks.lock("x") as lease:
        text = json.dumps({"format": 2, "outcomes": {}, "shards": "0", "slots": slots})
        assert store.run(lambda sent: sent.write_note("x", store.attempt("x"), lease.token, text))
    for words, code in ((("--on-busy-exit", "9"), 9), ((), 75)):
        refused = shell.do("once", "x", "--per", "7d", *words, "echo", "ran")
        assert (refused.returncode, refused.stdout) == (code, "")
        assert " is refused: the last slot is 2023-11-14T22:13:20Z" in refused.stderr
    assert shell.locks.inspect("x") is None
    assert shell.do("forget", "x").returncode == 0
    assert shell.do("once", "x", "--per", "7d", "echo", "ran").stdout == "ran\n"


def test_wrong_usage_is_explained(shell: Shell) -> None:
    for words, said in (
        (("history",), "NAME is missing"),
        (("history", "x", "y"), "unexpected argument 'y'"),
        (("forget",), "NAME is missing"),
        (("forget", "x", "1", "2"), "unexpected argument '2'"),
        (("forget", "x", "v" * 65), "version must have 1 to 64 characters"),
        (("once", "x", "--per", "fortnight", "true"), "--per: invalid duration 'fortnight'"),
        (("once", "x", "--per", "0.5s", "true"), "per must be a whole number of seconds"),
        (("once", "x", "--per", "hour", "--version", "1", "true"), "version and per exclude each other"),
        (("once", "x", "--keep", "0", "true"), "keep must be 1 or more"),
    ):
        done = shell.do(*words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    for command in ("history", "forget"):
        assert f"usage: leasehold {command} NAME" in shell.do("help", command).stdout
