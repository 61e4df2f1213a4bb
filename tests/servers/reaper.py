"""Leaves no server behind: a small process that outlives the test run and ends what it started.

A test run that is killed with SIGKILL can't clean up, and a parent-death signal would reach only a server's
first process, and already when the *thread* that started it ends. So each test process has one helper, in a
session of its own, which is told of every process group and folder and acts when its parent is gone.

This file is both: imported, it is the side of the tests; run as a program, it is the helper.
"""

import atexit
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_helper: subprocess.Popen[str] | None = None
_helper_of = 0
_one_at_a_time = threading.Lock()


def tell(word: str, what: object) -> None:
    """Tell the helper of a `group` to kill, one that is `gone`, or a `folder` to remove."""
    global _helper, _helper_of
    with _one_at_a_time:
        if _helper is None or _helper_of != os.getpid():  # a forked process has a helper of its own
            _helper = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # whoever reads the run's output must not wait for the helper
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            _helper_of = os.getpid()
            atexit.register(_dismiss, _helper, _helper_of)
        assert _helper.stdin is not None
        _helper.stdin.write(f"{word} {what}\n")
        _helper.stdin.flush()


def _dismiss(helper: subprocess.Popen[str], of: int) -> None:
    """The run ends in good order."""
    if of != os.getpid():
        return
    assert helper.stdin is not None
    helper.stdin.close()
    try:
        helper.wait(5.0)
    except subprocess.TimeoutExpired:  # a forked child still has the other end: it ends with this process
        pass


def sweep_clock(process: int) -> None:
    """Remove what libfaketime leaves of a process that it could not end in good order."""
    for name in (f"faketime_shm_{process}", f"sem.faketime_sem_{process}"):
        Path("/dev/shm", name).unlink(missing_ok=True)


def sweep_shared_memory(folder: Path) -> None:
    """Remove the piece of shared memory that a killed PostgreSQL leaves, which the kernel never would."""
    left = folder / "data" / "postmaster.pid"
    if left.exists() and len(lines := left.read_text().splitlines()) > 6:
        identifier = lines[6].split()[1]  # the seventh line: key and identifier
        subprocess.run(["ipcrm", "--shmem-id", identifier], capture_output=True, check=False)


def stat(entry: Path) -> list[str]:
    """State, parent, process group ... of a process or thread, as /proc has them after its name."""
    return (entry / "stat").read_text().rpartition(")")[2].split()


def members(group: int) -> set[int]:
    """The processes of a group, and their descendants: each backend of PostgreSQL is in a session of its own."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            _, parent, its_group, *_ = stat(Path("/proc", str(process)))
        except OSError:  # it has ended since
            continue
        parents[process] = int(parent)
        if int(its_group) == group:
            found.add(process)
    while more := {process for process, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _serve(parent: int) -> None:
    groups: set[int] = set()
    folders: set[str] = set()
    pending = b""
    # The end of the pipe shows that the parent is gone, unless a forked child of it still holds the other
    # end: hence the look at the parent's number once a second.
    while os.getppid() == parent:
        if not select.select([0], [], [], 1.0)[0]:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            break
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            word, what = line.decode().split(" ", 1)
            match word:
                case "group":
                    groups.add(int(what))
                case "gone":
                    groups.discard(int(what))
                case "folder":
                    folders.add(what)
    for group in groups:
        for process in members(group):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        sweep_clock(group)
    for folder in folders:
        sweep_shared_memory(Path(folder))
    end = time.monotonic() + 10
    while folders and time.monotonic() < end:  # a dying server may still write to its folder
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        folders = set(filter(os.path.exists, folders))
        time.sleep(0.05)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
