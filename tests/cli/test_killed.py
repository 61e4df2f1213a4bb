"""``run`` is killed with −9: COMMAND and the processes it started die with it."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from .shell import Shell, alive, end_input, files_of, finish, line_of, signals_of, until

TTL = 5.0
FAMILY = "sleep 1000 & echo $$ $!; sleep 1000"
"""A shell with two children; it prints its own process id and that of the first child."""


def start_family(shell: Shell) -> tuple[int, list[int]]:
    run = shell.start("run", "job", "--ttl", f"{TTL}s", "--", "sh", "-c", FAMILY)
    pids = [int(pid) for pid in line_of(run).split()]
    assert all(map(alive, pids))
    return run.pid, pids


def test_killed_run_takes_command_with_it_and_frees_the_lease(shell: Shell) -> None:
    first, family = start_family(shell)
    second = shell.start("run", "job", "--", "echo", "mine")
    until(lambda: shell.waiters("job") == 1)
    os.kill(first, signal.SIGKILL)
    killed = time.monotonic()
    assert line_of(second) == "mine"
    assert time.monotonic() - killed < TTL + 1
    assert not any(map(alive, family)), "the next run had the lease while the first COMMAND was alive"
    done = finish(second)
    assert done.returncode == 0
    assert "taken over" in done.stderr
    until(lambda: shell.processes() == [])


def test_killed_run_takes_command_with_it_without_the_guardian(shell: Shell) -> None:
    """``pkill -9 -f 'leasehold run'`` kills both. Then the parent-death signal kills COMMAND."""
    run = shell.start("run", "job", "--", "sh", "-c", "echo $$; exec sleep 1000")
    command = int(line_of(run))
    os.kill(shell.guardian_of(run.pid), signal.SIGKILL)
    run.kill()
    run.wait()
    until(lambda: not alive(command))
    until(lambda: shell.locks.inspect("job") is None or shell.locks.lock("job").try_acquire())


def test_run_continues_when_its_guardian_is_killed(shell: Shell) -> None:
    run = shell.start(
        "run", "job", "--ttl", "9s", "--", "sh", "-c", "echo ready; read line; exit 3", stdin=subprocess.PIPE
    )
    assert line_of(run) == "ready"
    held = shell.locks.inspect("job")
    assert held is not None
    os.kill(shell.guardian_of(run.pid), signal.SIGKILL)
    until(lambda: (now := shell.locks.inspect("job")) and now.expires > held.expires)
    end_input(run)
    assert finish(run).returncode == 3


def test_guardian_ignores_signals_and_holds_no_files(shell: Shell) -> None:
    """The guardian has one open file, its pipe, a session of its own, and ignores the usual signals."""
    run = shell.start("run", "job", "--", "sh", "-c", "echo ready; read line", stdin=subprocess.PIPE)
    assert line_of(run) == "ready"
    guardian = shell.guardian_of(run.pid)
    until(lambda: len(os.listdir(f"/proc/{guardian}/fd")) == 1)
    (only,) = files_of(guardian)
    assert only.startswith("pipe:")
    assert os.getsid(guardian) == guardian != os.getsid(run.pid)
    ignored = signals_of(guardian, "SigIgn")
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2} <= ignored
    end_input(run)
    assert run.wait() == 1, "the status of `read` at the end of its input"
    assert not alive(guardian)


def test_lease_stays_taken_while_a_process_outside_the_group_lives(shell: Shell) -> None:
    """A daemon that COMMAND started survives: no other holder gets the lease while it lives, up to the ttl."""
    script = "setsid sh -c 'echo $$; exec sleep 1000' & wait"
    run = shell.start("run", "job", "--ttl", "1h", "--", "sh", "-c", script)
    daemon = int(line_of(run))
    run.kill()
    run.wait()
    until(lambda: shell.processes() == [daemon])
    assert shell.do("run", "job", "--no-wait", "--", "true").returncode == 75
    waiting = shell.start("run", "job", "--", "true")
    until(lambda: shell.waiters("job") == 1)
    os.kill(daemon, signal.SIGKILL)
    assert finish(waiting).returncode == 0
