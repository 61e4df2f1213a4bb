"""COMMAND uses the terminal as if the shell had started it."""

from __future__ import annotations

import shutil

import pytest

from .conftest import Start
from .shell import Shell, until


def test_command_reads_from_the_terminal(shell: Shell, terminal: Start) -> None:
    tty = terminal(*shell.words("run", "job", "--", "sh", "-c", "echo ready; read line; echo got $line"))
    tty.expect("ready")
    tty.type("hello\n")
    tty.expect("got hello")
    assert tty.status() == 0


def test_ctrl_c_reaches_command(shell: Shell, terminal: Start) -> None:
    tty = terminal(
        *shell.words(
            "run", "job", "--", "sh", "-c", "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.01; done"
        )
    )
    tty.expect("ready")
    tty.type("\x03")
    tty.expect("caught")
    assert tty.status() == 9
    assert shell.locks.inspect("job") is None


def test_ctrl_c_kills_command(shell: Shell, terminal: Start) -> None:
    tty = terminal(*shell.words("run", "job", "--", "sh", "-c", "echo ready; exec sleep 1000"))
    tty.expect("ready")
    tty.type("\x03")
    assert tty.status() == 130


def test_ctrl_c_ends_the_wait(shell: Shell, terminal: Start) -> None:
    with shell.locks.lock("job"):
        tty = terminal(*shell.words("run", "job", "--", "true"))
        until(lambda: shell.waiters("job") == 1)
        tty.type("\x03")
        assert tty.status() == 130
        until(lambda: shell.waiters("job") == 0)  # at once, unless its last call got no answer in time


def test_terminal_returns_to_the_shell_after_run(shell: Shell, terminal: Start) -> None:
    words = " ".join(shell.words("run", "job", "--"))
    tty = terminal("sh", "-c", f"{words} true; {words} sh -c 'exit 3'; echo status $?; read line; echo got $line")
    tty.expect("status 3")
    tty.type("hello\n")
    tty.expect("got hello")
    assert tty.status() == 0


def test_ctrl_c_is_passed_on_when_stdin_is_a_file(shell: Shell, terminal: Start) -> None:
    """The session has a terminal, which stays with ``run``."""
    words = " ".join(shell.words("run", "job", "--"))
    tty = terminal("sh", "-c", f"exec {words} sh -c 'echo ready; exec sleep 1000' </dev/null")
    tty.expect("ready")
    tty.type("\x03")
    assert tty.status() == 130


@pytest.mark.skipif(not shutil.which("bash"), reason="needs a shell with job control")
def test_ctrl_z_stops_run_and_fg_continues_it(shell: Shell, terminal: Start) -> None:
    tty = terminal("bash", "--norc", "--noprofile", "-i")
    tty.expect("$ ")
    run = " ".join(shell.words("run", "job", "--ttl", "1h", "--", "sh", "-c"))
    tty.type(f"{run} 'echo re''ady; read line; echo got-$line; read line; exit 4'\n")
    tty.expect("ready")
    tty.type("\x1a")
    tty.expect("Stopped")
    tty.type("echo shell-$((1 + 1))\n")
    tty.expect("shell-2")
    held = shell.locks.inspect("job")
    assert held is not None
    tty.type("fg\n")
    tty.type("hello\n")
    tty.expect("got-hello")
    tty.type("\x1a")
    tty.expect("Stopped")
    tty.type("fg\n")
    tty.type("\n")
    tty.expect("$ ")
    tty.type("echo status-$?\n")
    tty.expect("status-4")
    tty.type("exit\n")
    assert tty.status() == 0


@pytest.mark.skipif(not shutil.which("bash"), reason="needs a shell with job control")
def test_command_that_stops_itself_again_stays_stopped(shell: Shell, terminal: Start) -> None:
    tty = terminal("bash", "--norc", "--noprofile", "-i")
    tty.expect("$ ")
    run = " ".join(shell.words("run", "job", "--ttl", "1h", "--", "sh", "-c"))
    tty.type(f"{run} 'n=0; while kill -TSTP $$; do n=$((n+1)); echo o''n-$n-; done'\n")
    for count in range(1, 31):
        tty.expect("Stopped")
        tty.expect("$ ")
        tty.type("fg\n")
        tty.expect("on-")
        tty.expect("-")
        assert tty.before == str(count), "continued twice"
    tty.expect("Stopped")
    tty.type("kill -9 %1; exit\n")
    tty.type("exit\n")
    tty.status()


@pytest.mark.skipif(not shutil.which("bash"), reason="needs a shell with job control")
def test_lease_lost_while_stopped_ends_command_before_it_continues(shell: Shell, terminal: Start) -> None:
    tty = terminal("bash", "--norc", "--noprofile", "-i")
    tty.expect("$ ")
    run = " ".join(shell.words("run", "job", "--ttl", "4s", "--", "sh", "-c"))
    tty.type(f"{run} 'echo re''ady; read line; touch went-on'\n")
    tty.expect("ready")
    tty.type("\x1a")
    tty.expect("Stopped")
    with shell.locks.lock("job"):
        tty.type("fg\n")
        tty.expect("lost")
        tty.type("\n")
        tty.type("echo status-$?\n")
        tty.expect("status-")
        assert not (shell.folder / "went-on").exists()
    tty.type("exit\n")
    tty.status()
