"""``leasehold once``: COMMAND is done once, whoever starts it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold.cli import run as cli_run
from leasehold.cli.once import Work
from leasehold.cli.options import parse
from leasehold.once import LONGEST_NOTE
from leasehold.policy import UNAVAILABLE_LIMIT
from leasehold.testing import faults

from .shell import Shell, finish, until


def test_it_is_done_once(shell: Shell) -> None:
    first = shell.do("once", "init", "--", "sh", "-c", "echo ran $LEASEHOLD_NAME $LEASEHOLD_TOKEN")
    assert (first.returncode, first.stdout.split()[:2]) == (0, ["ran", "init"])
    again = shell.do("once", "init", "--", "echo", "ran")
    assert (again.returncode, again.stdout) == (0, "")
    assert "'init' version 1 was done, by " in again.stderr
    other = shell.do("once", "init", "--version", "2", "echo", "ran")
    assert (other.returncode, other.stdout) == (0, "ran\n")
    outcome = shell.locks.once("init", version=1).outcome()
    assert outcome is not None
    assert outcome.token == int(first.stdout.split()[2])
    assert shell.locks.inspect("init") is None


def test_a_failure_stands_unless_it_is_retried(shell: Shell, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    command = ("sh", "-c", f"echo >> {runs}; exit 3")
    assert shell.do("once", "x", "--", *command).returncode == 3
    stands = shell.do("once", "x", "--", *command)
    assert stands.returncode == 3
    assert "'x' version 1 has failed (ExitStatus: 3), by " in stands.stderr
    assert shell.do("once", "x", "--retries", "1", "--", *command).returncode == 3
    assert shell.do("once", "x", "--retries", "1", "--", *command).returncode == 3
    assert runs.read_text() == "\n" * 2
    assert shell.do("once", "x", "--retries", "2", "true").returncode == 0
    assert shell.do("once", "x", *command).returncode == 0


def test_the_others_wait_for_it(shell: Shell, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = ("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done; echo ran")
    three = [shell.start("once", "x", *command) for _ in range(3)]
    until(lambda: shell.waiters("x") == 2)
    busy = shell.do("once", "x", "--no-wait", *command)
    assert (busy.returncode, "'x' is busy: held by" in busy.stderr) == (75, True)
    assert shell.timed_out("once", "x", "--timeout", "1s", "--on-busy-exit", "9", *command).returncode == 9
    gate.touch()
    done = [finish(each) for each in three]
    assert [each.returncode for each in done] == [0, 0, 0]
    assert sorted(each.stdout for each in done) == ["", "", "ran\n"]


def test_one_that_is_killed_is_replaced(shell: Shell, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = ("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done; echo ran")
    first = shell.start("once", "x", *command)
    until(lambda: shell.locks.inspect("x"))
    second = shell.start("once", "x", *command)
    until(lambda: shell.waiters("x") == 1)
    os.kill(first.pid, signal.SIGKILL)
    gate.touch()
    done = finish(second)
    assert (done.returncode, done.stdout) == (0, "ran\n")


def test_an_interruption_is_no_outcome(shell: Shell) -> None:
    first = shell.start("once", "x", "sleep", "60")
    until(lambda: shell.locks.inspect("x"))
    until(lambda: shell.runs("sleep"))
    first.send_signal(signal.SIGTERM)
    assert finish(first).returncode == 128 + signal.SIGTERM
    assert shell.locks.once("x").outcome() is None
    assert shell.do("once", "x", "true").returncode == 0


def test_a_store_that_is_away_is_waited_for(shell: Shell) -> None:
    """As ``run`` does: a container may start before its database."""
    network = faults.install(shell.locks)
    for words, reads in ((("--timeout", "60s"), 3), ((), 3), (("--no-wait",), 1)):
        before = network.calls["read_note"]
        network.lose_request("read_note", times=2)
        work = Work(parse(["once", "x", *words, "true"]), shell.locks)
        if reads == 1:
            with pytest.raises(leasehold.StoreUnavailable):
                work.settled()
        else:
            assert work.settled() is None
        assert network.calls["read_note"] - before == reads


def test_one_timeout_is_for_the_reading_and_for_the_lease(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store that was away has taken of it is gone."""
    given: list[float | None] = []

    def acquire(options: object, locks: object, every: float, signals: object, timeout: float | None) -> int:
        given.append(timeout)
        return 9

    monkeypatch.setattr(cli_run, "_acquire", acquire)
    monkeypatch.setattr("leasehold.cli.store.open_store", lambda options: shell.locks)
    monkeypatch.setattr("leasehold.cli.store.leave", lambda locks: None)
    monkeypatch.setattr("leasehold.cli.signals.Signals", lambda: None)
    network = faults.install(shell.locks)
    network.lose_request("read_note", times=2, noticed_after=0.2)
    for words in (("--timeout", "60s"), (), ("--no-wait",)):
        assert cli_run._run(parse(["once", "x", *words, "true"]), None, None) == 9  # type: ignore[arg-type]
    assert given[0] is not None
    assert given[0] <= 60 - 2 * 0.2
    assert given[1:] == [None, 0.0]


def test_under_its_lease_it_does_not_wait_until_that_has_ended(shell: Shell) -> None:
    network = faults.install(shell.locks)
    work = Work(parse(["once", "x", "true"]), shell.locks)
    with shell.locks.lock("x", ttl=4):
        network.lose_request("read_note")
        begun = time.monotonic()
        with pytest.raises(leasehold.StoreUnavailable):
            work.settled()
        assert time.monotonic() - begun < UNAVAILABLE_LIMIT / 2


def test_what_could_not_be_recorded_is_not_run(shell: Shell) -> None:
    note: dict[str, Any] = {f"{number}{'v' * 50}": ["done", 1] for number in range(LONGEST_NOTE // 70)}
    core = shell.locks._core
    with shell.locks.lock("x") as lease:
        text = json.dumps({"format": 1, "outcomes": note}, separators=(",", ":"))
        assert core.driver.run(core.store.write_note("x", lease._claim.attempt, lease.token, text), 5.0)
    done = shell.do("once", "x", "--version", "new", "--", "touch", "ran")
    assert (done.returncode, done.stderr.count("\n")) == (78, 1), done.stderr
    assert "no room for another: forget old ones" in done.stderr
    assert not (shell.folder / "ran").exists()
    assert shell.locks.inspect("x") is None


def test_wrong_usage(shell: Shell) -> None:
    for words, said in (
        (("once",), "NAME is missing"),
        (("once", "x"), "COMMAND is missing"),
        (("once", "x", "--retries", "many", "true"), "--retries"),
        (("once", "x", "--version", "", "true"), "version"),
        (("once", "x", "--min-hold", "1s", "true"), "there is no option"),
    ):
        done = shell.do(*words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "--retries N" in shell.do("once", "--help").stdout
