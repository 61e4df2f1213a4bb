"""COMMAND as a process: forked early, started when the lease is held, signalled as a group, given the terminal.

The process is forked before the lease is asked for and waits on a pipe. So it is forked while there is one thread and
little memory, what it has to load is loaded meanwhile, and once the lease is granted there is only an ``exec`` to do.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

from ..typed import TYPE_CHECKING
from .say import say

if TYPE_CHECKING:
    from typing import NoReturn

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""As a shell has them."""
_GO = b"\0go"
_PR_SET_PDEATHSIG = 1


def find(program: str) -> tuple[str, int]:
    """The file that ``program`` names, as a shell finds it, and 0; or what is wrong with it and an exit code."""
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
        return "there is no such program" + ("" if os.path.dirname(program) else " in $PATH"), NOT_FOUND
    return f"{found[0]} is {'a folder' if os.path.isdir(found[0]) else 'not executable'}", NOT_EXECUTABLE


class Child:
    """COMMAND, from before its start until it has ended. Its process id is also that of its process group."""

    def __init__(self, path: str, line: list[str]) -> None:
        wait, self._pipe = os.pipe()
        parent = os.getpid()
        # A SIGINT that comes before the child has run would be Python's, which forgets in a child what has come so far.
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
        _set_group(self.pid)  # here too, so that the group is there whoever comes first
        self.started = False
        self.status: int | None = None
        """As an exit code, once it has ended; 128 + n when signal n has killed it."""
        self.out_of_reach = False
        """Whether the last signal reached nobody, because all that is left of the group runs as another user."""
        self.on_terminal = False

    def start(self, environment: dict[str, str | None], life: str | None) -> None:
        """Let it become COMMAND. ``environment`` is what to set or (None) unset; ``life`` a file to keep open."""
        self.on_terminal = os.isatty(0)
        words = ["1" if self._owns_terminal(os.getpgrp()) else "", life or ""]
        words += [key if value is None else f"{key}={value}" for key, value in environment.items()]
        message = "\0".join(words).encode("utf-8", "surrogateescape") + _GO
        if self.on_terminal:
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # or taking the terminal back would stop us
        self.started = True
        try:
            while message:
                message = message[os.write(self._pipe, message) :]
        except BrokenPipeError:
            pass  # somebody has killed it: that is its end, and its status says so
        os.close(self._pipe)

    def look(self) -> int | None:
        """Whether it has ended since the last look (then ``status`` is set), or which signal has stopped it."""
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
        """Send a signal to its whole group. False when nobody is left in it."""
        self.out_of_reach = False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            self.out_of_reach = True
        return True

    def dismiss(self) -> None:
        """It is not needed: end it, if it has not been started."""
        if not self.started:
            os.close(self._pipe)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    # The terminal. It is COMMAND's while that runs, or it could not read from it, and Ctrl-C would come to us alone.

    def give_terminal(self) -> None:
        """Give the terminal to COMMAND if it is ours."""
        if self._owns_terminal(os.getpgrp()):
            _give_terminal(self.pid)

    def take_terminal(self) -> None:
        """Take the terminal back if it is COMMAND's."""
        if self._owns_terminal(self.pid):
            _give_terminal(os.getpgrp())

    def stop_with_it(self) -> None:
        """COMMAND was stopped by Ctrl-Z: stop too, so that the shell comes forward; go on together with it.

        Here nothing is renewed meanwhile. COMMAND is not continued before the caller has looked at the lease.
        """
        self.take_terminal()
        # What continues us must not be passed on: COMMAND is continued once, or that undoes a Ctrl-Z that came since.
        before = {each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGTSTP, signal.SIGCONT)}
        # (This does nothing where there is no shell to continue us.)
        if self.on_terminal:
            os.killpg(os.getpgrp(), signal.SIGTSTP)  # with the rest of a pipeline, which Ctrl-Z has not reached
        else:
            os.kill(os.getpid(), signal.SIGTSTP)
        for each, handler in before.items():
            signal.signal(each, handler)

    def _owns_terminal(self, group: int) -> bool:
        try:
            return self.on_terminal and os.tcgetpgrp(0) == group
        except OSError:
            return False  # it is not the terminal of our session, or has gone


def _give_terminal(group: int) -> None:
    try:
        os.tcsetpgrp(0, group)
    except OSError:
        pass


def _set_group(pid: int) -> None:
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass  # it has done so itself, or is gone


def _become(path: str, line: list[str], wait: int, parent: int, mask: set[int]) -> NoReturn:
    """In the child: wait for the word to start, then be COMMAND. ``mask`` are the signals that are to be blocked."""
    for each in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        # What Python has changed for itself. A signal that our caller ignores stays ignored, as under nohup.
        if each != signal.SIGINT or signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _set_group(0)
    _die_with(parent)
    message = b""
    while chunk := os.read(wait, 65536):
        message += chunk
    if not message.endswith(_GO):
        os._exit(0)  # `run` has ended without a lease
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
    """Have the kernel kill this process, and what it becomes, when the parent dies."""
    if sys.platform == "linux":
        try:
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        except (ImportError, OSError, AttributeError):
            pass  # a Python without it: there is still the guardian
    if os.getppid() != parent:
        os._exit(0)  # too late: it had died before


def _keep_open(life: str) -> None:
    """Open a file for as long as COMMAND or anything that it starts lives (see docs/design/02-sqlite.md)."""
    try:
        fd = os.open(life, os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return  # then the lease ends when `run` dies, and the guardian has to be quick
    os.set_inheritable(fd, True)
    place = 50  # out of the way of shell scripts, which use the numbers below 10
    while _is_open(place):
        place += 1
    try:
        os.dup2(fd, place)
        os.close(fd)
    except OSError:
        pass  # few numbers are allowed here: then as it is


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
