"""``leasehold run`` with a COMMAND that has become another user, as sudo does: no signal of ours reaches it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.shell import Shell, alive, finish, line_of, until

NOT_ENDED = 77
BUSY = 75
WITHOUT_CAP_KILL = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill"]
OTHER_USER = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all"]
SCRIPT = "echo $$; exec sleep 1000"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root can become another user")


class Weak(Shell):
    """Calls ``leasehold`` as a root without CAP_KILL, who can become another user and not signal one."""

    def words(self, *words: str) -> list[str]:
        return [*WITHOUT_CAP_KILL, *super().words(*words)]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with Weak(tmp_path) as shell:
        yield shell


def start(shell: Shell, *command: str) -> tuple[subprocess.Popen[str], int]:
    """A ``run`` and the process that has become another user."""
    run = shell.start("run", "job", "--ttl", "1h", "--kill-after", "1s", "--", *command)
    pid = int(line_of(run))
    assert os.stat(f"/proc/{pid}").st_uid == 65534
    return run, pid


@pytest.mark.parametrize("command", [[*OTHER_USER, "sh", "-c", SCRIPT], ["sh", "-c", '"$@" & wait', "sh"]])
def test_lost_lease_says_that_command_runs_on(shell: Shell, command: list[str]) -> None:
    """Alone, or started by a shell that can be ended. The broken name is not given back before its ttl is over."""
    if command[0] == "sh":
        command = [*command, *OTHER_USER, "sh", "-c", SCRIPT]
    run, pid = start(shell, *command)
    assert shell.locks.break_lease("job")
    until(lambda: run.poll() is not None)
    assert run.returncode == NOT_ENDED
    assert alive(pid)
    assert shell.do("run", "job", "--no-wait", "--", "true").returncode == BUSY
    os.kill(pid, signal.SIGKILL)
    done = finish(run)
    assert "lease 'job' is lost: it was broken by an operator" in done.stderr
    assert "runs as another user" in done.stderr


def test_signal_that_cannot_be_passed_on_is_reported(shell: Shell) -> None:
    run, pid = start(shell, *OTHER_USER, "sh", "-c", SCRIPT)
    run.send_signal(signal.SIGTERM)
    assert run.stderr is not None
    line = run.stderr.readline()
    assert "SIGTERM" in line
    assert "runs as another user" in line
    assert alive(pid)
    os.kill(pid, signal.SIGTERM)
    assert finish(run).returncode == 128 + signal.SIGTERM


def test_command_that_ends_in_time_is_an_ordinary_loss(shell: Shell) -> None:
    run, pid = start(shell, *OTHER_USER, "sh", "-c", SCRIPT)
    assert shell.locks.break_lease("job")
    assert run.stderr is not None
    until(lambda: "another user" in run.stderr.readline())
    os.kill(pid, signal.SIGTERM)
    assert finish(run).returncode == 74
    assert shell.do("run", "job", "--no-wait", "--", "true").returncode == 0
