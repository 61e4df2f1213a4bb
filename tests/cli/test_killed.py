"""``run`` is killed with −9: COMMAND and what it has started go with it."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from .shell import Shell, alive, end_input, files_of, finish, line_of, signals_of, until

TTL = 5.0
FAMILY = "sleep 1000 & echo $$ $!; sleep 1000"
"""A shell with two children; it prints its own number and that of the first."""


def start_family(shell: Shell) -> tuple[int, list[int]]:
    run = shell.start("run", "job", "--ttl", f"{TTL}s", "--", "sh", "-c", FAMILY)
    pids = [int(pid) for pid in line_of(run).split()]
    assert all(map(alive, pids))
    return run.pid, pids


def test_command_and_its_children_are_gone_and_the_next_one_has_the_lease(shell: Shell) -> None:
    first, family = start_family(shell)
    second = shell.start("run", "job", "--", "echo", "mine")
    until(lambda: shell.waiters("job") == 1)
    os.kill(first, signal.SIGKILL)
    killed = time.monotonic()
    assert line_of(second) == "mine"
    assert time.monotonic() - killed < TTL + 1
    assert not any(map(alive, family)), "it must not have got it before they were gone"
    done = finish(second)
    assert done.returncode == 0
    assert "taken over" in done.stderr
    until(lambda: shell.processes() == [])


def test_command_dies_also_when_the_guardian_is_killed_first(shell: Shell) -> None:
    """As ``pkill -9 -f 'leasehold run'`` does. That is what the parent-death signal is for."""
    run = shell.start("run", "job", "--", "sh", "-c", "echo $$; exec sleep 1000")
    command = int(line_of(run))
    os.kill(shell.guardian_of(run.pid), signal.SIGKILL)
    run.kill()
    run.wait()
    until(lambda: not alive(command))
    until(lambda: shell.locks.inspect("job") is None or shell.locks.lock("job").try_acquire())


def test_without_its_guardian_run_goes_on(shell: Shell) -> None:
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


def test_the_guardian_stays_out_of_the_way(shell: Shell) -> None:
    """It has one file open, its pipe; is in no group or session of ours; and heeds no signal that may come along."""
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


def test_the_lease_is_kept_for_what_has_left_the_group(shell: Shell) -> None:
    """A daemon that COMMAND has started survives; the lease is not another's while it may be at work, until its ttl."""
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
