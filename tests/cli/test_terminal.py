"""On a terminal COMMAND has it, as if it had been started by the shell itself."""

from __future__ import annotations

import os
import pty
import select
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from .shell import LIMIT, Shell, until


class Terminal:
    """A terminal with one program on it."""

    def __init__(self, words: list[str], environment: dict[str, str], folder: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(folder)
                os.execvpe(words[0], words, environment)
            finally:
                os._exit(99)
        self.seen = self.before = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, text: str) -> None:
        """Read on until this has appeared."""
        ends = time.monotonic() + LIMIT
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, ends - time.monotonic()))
            assert ready, f"{text!r} did not appear in {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 4096).decode()
            except OSError:
                raise AssertionError(f"the end came before {text!r}: {self.seen!r}") from None
        self.before, _, self.seen = self.seen.partition(text)

    def status(self) -> int:
        ends = time.monotonic() + LIMIT
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < ends, f"it does not end; it said {self.seen!r}"
            time.sleep(0.005)


Start: TypeAlias = Callable[..., Terminal]


@pytest.fixture
def terminal(shell: Shell) -> Iterator[Start]:
    opened = []

    def start(*words: str) -> Terminal:
        terminal = Terminal(list(words), {**shell.environment, "PS1": "$ "}, str(shell.folder))
        opened.append(terminal)
        return terminal

    yield start
    for each in opened:
        os.close(each.fd)


def test_command_reads_from_the_terminal(shell: Shell, terminal: Start) -> None:
    tty = terminal(*shell.words("run", "job", "--", "sh", "-c", "echo ready; read line; echo got $line"))
    tty.expect("ready")
    tty.type("hello\n")
    tty.expect("got hello")
    assert tty.status() == 0


def test_ctrl_c_is_for_command(shell: Shell, terminal: Start) -> None:
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
        until(lambda: shell.waiters("job") == 0)  # at once, but for one that gets no answer in time


def test_afterwards_the_terminal_is_ours_again(shell: Shell, terminal: Start) -> None:
    words = " ".join(shell.words("run", "job", "--"))
    tty = terminal("sh", "-c", f"{words} true; {words} sh -c 'exit 3'; echo status $?; read line; echo got $line")
    tty.expect("status 3")
    tty.type("hello\n")
    tty.expect("got hello")
    assert tty.status() == 0


def test_no_terminal_is_needed(shell: Shell, terminal: Start) -> None:
    """Standard input is a file, but the session has a terminal: that stays with us, and Ctrl-C is passed on."""
    words = " ".join(shell.words("run", "job", "--"))
    tty = terminal("sh", "-c", f"exec {words} sh -c 'echo ready; exec sleep 1000' </dev/null")
    tty.expect("ready")
    tty.type("\x03")
    assert tty.status() == 130


@pytest.mark.skipif(not shutil.which("bash"), reason="needs a shell with job control")
def test_ctrl_z_and_fg(shell: Shell, terminal: Start) -> None:
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
def test_command_that_stops_again_at_once_stays_stopped(shell: Shell, terminal: Start) -> None:
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
def test_a_lease_lost_while_stopped_ends_command_before_it_goes_on(shell: Shell, terminal: Start) -> None:
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
