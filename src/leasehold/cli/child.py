"""COMMAND as a process: forked early, started when the lease is held, signalled as a group, given the terminal.

The process is forked before the lease is acquired, and then waits on a pipe. At that time ``run`` has one thread and
little memory, so the fork is cheap and safe. When the lease is granted, only an ``exec`` is left to do.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import TYPE_CHECKING

from .say import say

if TYPE_CHECKING:
    from typing import NoReturn

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""The exit codes that a shell uses."""
_GO = b"\0go"
_PR_SET_PDEATHSIG = 1


def find(program: str) -> tuple[str, int]:
    """The file of ``program``, searched as a shell does, and 0; or an error message and an exit code."""
    if os.path.dirname(program):
        places = [program]
    else:
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        places = [os.path.join(folder, program) for folder in folders if program]
    found = [place for place in places if os.path.exists(place)]
    for place in found:
        if os.path.isfile(place) and os.access(place, os.X_OK):
            return place, 0
    if not found:
        return "program not found" + ("" if os.path.dirname(program) else " in $PATH"), NOT_FOUND
    return f"{found[0]} is {'a folder' if os.path.isdir(found[0]) else 'not executable'}", NOT_EXECUTABLE


class Child:
    """COMMAND, from before its start until its end. Its process id is also the id of its process group."""

    def __init__(self, path: str, line: list[str]) -> None:
        wait, self._pipe = os.pipe()
        parent = os.getpid()
        # Python drops, in the forked child, a SIGINT that arrived before the child ran: so block it until then.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    os.close(self._pipe)
                    _become(path, line, wait, parent, mask)
                finally:
                    os._exit(NOT_EXECUTABLE)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(wait)
        _set_group(self.pid)  # parent and child both do it: whichever runs first
        self.started = False
        self.status: int | None = None
        """The exit code once COMMAND has ended; 128 + n if signal n killed it."""
        self.out_of_reach = False
        """Whether the last signal reached no process, because all processes left in the group run as another user."""
        self.on_terminal = False

    def start(self, environment: dict[str, str | None], life: str | None) -> None:
        """Start COMMAND. ``environment`` has variables to set, or to unset (None); ``life`` is a file to keep open."""
        self.on_terminal = os.isatty(0)
        words = ["1" if self._owns_terminal(os.getpgrp()) else "", life or ""]
        words += [key if value is None else f"{key}={value}" for key, value in environment.items()]
        message = "\0".join(words).encode("utf-8", "surrogateescape") + _GO
        if self.on_terminal:
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # otherwise taking the terminal back would stop `run`
        self.started = True
        try:
            while message:
                message = message[os.write(self._pipe, message) :]
        except BrokenPipeError:
            pass  # the process was killed: its status will say so
        os.close(self._pipe)

    def look(self) -> int | None:
        """Check COMMAND without waiting. Sets ``status`` if it has ended; returns the signal if one has stopped it."""
        if self.status is not None:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if not pid:
            return None
        if os.WIFSTOPPED(status):
            return os.WSTOPSIG(status)
        code = os.waitstatus_to_exitcode(status)
        self.status = code if code >= 0 else 128 - code
        return None

    def signal(self, number: int) -> bool:
        """Send a signal to the whole process group. False when no process is left in it."""
        self.out_of_reach = False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            self.out_of_reach = True
        return True

    def dismiss(self) -> None:
        """End the waiting process if COMMAND was never started."""
        if not self.started:
            os.close(self._pipe)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    # The terminal. COMMAND is its foreground group while it runs: otherwise COMMAND could not read from the terminal,
    # and Ctrl-C would reach only `run`.

    def give_terminal(self) -> None:
        """Give the terminal to COMMAND if `run` owns it."""
        if self._owns_terminal(os.getpgrp()):
            _give_terminal(self.pid)

    def take_terminal(self) -> None:
        """Take the terminal back if COMMAND owns it."""
        if self._owns_terminal(self.pid):
            _give_terminal(os.getpgrp())

    def stop_with_it(self) -> None:
        """COMMAND was stopped by Ctrl-Z: stop `run` too, so that the shell gets the terminal. Returns when continued.

        Nothing is renewed while `run` is stopped. The caller checks the lease before it continues COMMAND.
        """
        self.take_terminal()
        # The SIGCONT that continues `run` must not be passed on: it could undo a Ctrl-Z that came since.
        before = {each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGTSTP, signal.SIGCONT)}
        # (SIGTSTP has no effect where there is no shell that could continue `run`.)
        if self.on_terminal:
            os.killpg(os.getpgrp(), signal.SIGTSTP)  # also the rest of a pipeline, which Ctrl-Z did not reach
        else:
            os.kill(os.getpid(), signal.SIGTSTP)
        for each, handler in before.items():
            signal.signal(each, handler)

    def _owns_terminal(self, group: int) -> bool:
        try:
            return self.on_terminal and os.tcgetpgrp(0) == group
        except OSError:
            return False  # not the terminal of this session, or closed


def _give_terminal(group: int) -> None:
    try:
        os.tcsetpgrp(0, group)
    except OSError:
        pass


def _set_group(pid: int) -> None:
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass  # the child has done it already, or has ended


def _become(path: str, line: list[str], wait: int, parent: int, mask: set[int]) -> NoReturn:
    """In the child: wait for the message to start, then exec COMMAND. ``mask`` are the signals to block in COMMAND."""
    for each in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        # Python changed these handlers. A SIGINT that the caller ignores stays ignored, as under nohup.
        if each != signal.SIGINT or signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _set_group(0)
    _die_with(parent)
    message = b""
    while chunk := os.read(wait, 65536):
        message += chunk
    if not message.endswith(_GO):
        os._exit(0)  # `run` ended without a lease
    os.close(wait)
    foreground, life, *changes = message[: -len(_GO)].decode("utf-8", "surrogateescape").split("\0")
    environment = dict(os.environ)
    for change in changes:
        key, equals, value = change.partition("=")
        environment.pop(key, None)
        if equals:
            environment[key] = value
    if life:
        _keep_open(life)
    if foreground:
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        _give_terminal(os.getpgrp())
        signal.signal(signal.SIGTTOU, before)
    try:
        try:
            os.execve(path, line, environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execve("/bin/sh", ["sh", path, *line[1:]], environment)  # a script without "#!", as execvp(3) does
    except OSError as error:
        say(f"{path}: {error.strerror}")
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process, and COMMAND after the exec, when the parent dies."""
    if sys.platform == "linux":
        try:
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        except (ImportError, OSError, AttributeError):
            pass  # a Python without ctypes: the guardian does the same
    if os.getppid() != parent:
        os._exit(0)  # the parent died before prctl was called


def _keep_open(life: str) -> None:
    """Open a file that stays open while COMMAND or any process started by it lives (see docs/design/02-sqlite.md)."""
    try:
        fd = os.open(life, os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return  # the lease then ends when `run` dies, and the guardian kills COMMAND
    os.set_inheritable(fd, True)
    place = 50  # shell scripts use the numbers below 10
    while _is_open(place):
        place += 1
    try:
        os.dup2(fd, place)
        os.close(fd)
    except OSError:
        pass  # the limit of open files is lower: keep the number that it has


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
