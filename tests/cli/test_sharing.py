"""``run --limit`` and ``run --shared``: several holders of one name."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from .shell import Shell, end_input, finish, line_of, until

READY = ("--", "sh", "-c", "echo $LEASEHOLD_TOKEN; read line")
"""A COMMAND that prints its token, and ends when its input ends."""


def begin(shell: Shell, *words: str) -> tuple[subprocess.Popen[str], int]:
    """A holder, and its token."""
    run = shell.start("run", *words, *READY, stdin=subprocess.PIPE)
    return run, int(line_of(run))


def end(run: subprocess.Popen[str]) -> None:
    end_input(run)
    finish(run)


def test_limit_lets_so_many_run_at_once(shell: Shell) -> None:
    first, one = begin(shell, "job", "--limit", "2")
    second, two = begin(shell, "job", "--limit", "2")
    assert one < two
    third = shell.do("run", "job", "--limit", "2", "-n", "--", "true")
    assert third.returncode == 75
    assert "'job' is busy: held by " in third.stderr
    end(first)
    assert shell.do("run", "job", "--limit", "2", "-n", "--", "true").returncode == 0
    end(second)


def test_limit_that_differs_from_the_one_in_use_is_refused(shell: Shell) -> None:
    first, _ = begin(shell, "job", "--limit", "2")
    for words in (("--limit", "3"), ("--shared",), ()):
        other = shell.do("run", "job", *words, "-n", "--", "true")
        assert other.returncode == 2
        assert "in use as a semaphore with limit 2" in other.stderr
    end(first)


def test_run_is_exclusive_by_default(shell: Shell) -> None:
    first, _ = begin(shell, "job")
    assert shell.do("run", "job", "-n", "--", "true").returncode == 75
    busy = shell.do("run", "job", "--shared", "-n", "--", "true")
    assert busy.returncode == 75
    assert "'job' is busy: held by " in busy.stderr
    end(first)


def test_shared_runs_overlap_and_exclude_the_others(shell: Shell) -> None:
    first, one = begin(shell, "job", "--shared")
    second, two = begin(shell, "job", "--shared")
    assert one < two
    assert shell.do("run", "job", "-n", "--", "true").returncode == 75
    assert shell.timed_out("run", "job", "-w", "200ms", "--", "true").returncode == 75
    end(first)
    end(second)
    assert shell.do("run", "job", "-n", "--", "true").returncode == 0


def test_exclusive_run_waits_for_shared_runs_and_is_not_starved(shell: Shell) -> None:
    reader, _ = begin(shell, "job", "--shared")
    writer = shell.start("run", "job", *READY, stdin=subprocess.PIPE)
    until(lambda: shell.waiters("job") == 1)
    assert shell.do("run", "job", "--shared", "-n", "--", "true").returncode == 75, "it came after the writer"
    end(reader)
    assert int(line_of(writer)) > 0
    end(writer)


def test_shared_run_waits_for_an_exclusive_run(shell: Shell) -> None:
    with shell.locks.lock("job"):
        reader = shell.start("run", "job", "--shared", "-v", "--", "echo", "mine")
        assert reader.stderr is not None
        assert "waiting for 'job': held by " in reader.stderr.readline()
    assert finish(reader).stdout == "mine\n"


def test_shared_run_times_out_while_an_exclusive_run_holds(shell: Shell) -> None:
    with shell.locks.lock("job"):
        done = shell.timed_out("run", "job", "--shared", "-w", "300ms", "--", "true")
    assert done.returncode == 75
    assert "timed out after 0.3s waiting for 'job': held by " in done.stderr


def test_signal_ends_the_wait_for_a_share(shell: Shell) -> None:
    with shell.locks.lock("job"):
        reader = shell.start("run", "job", "--shared", "-v", "--", "true")
        assert reader.stderr is not None
        assert "waiting" in reader.stderr.readline()
        reader.terminate()
        assert finish(reader).returncode == 143


@pytest.mark.timeout(240)
def test_readers_and_writers_never_overlap(shell: Shell, tmp_path: Path) -> None:
    """Writers count in two files that readers compare."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("0")
    two.write_text("0")
    write = f"n=$(($(cat {one}) + 1)); echo $n > {one}; sleep 0.02; echo $n > {two}"
    read = f"n=$(cat {one}); sleep 0.01; test $n = $(cat {two})"
    statuses: list[int] = []

    def client(number: int) -> None:
        for _ in range(4):
            words = ("job", "--shared", "--", "sh", "-c", read) if number % 2 else ("job", "--", "sh", "-c", write)
            statuses.append(shell.do("run", *words).returncode)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [0] * 16, "SAFETY: a reader saw a half-written pair"
    assert one.read_text() == two.read_text() == "8\n"


def test_verbose_says_what_happens(shell: Shell) -> None:
    done = shell.do("run", "job", "-v", "--", "sh", "-c", "exit 3")
    acquired, released = done.stderr.splitlines()
    assert acquired.startswith("leasehold: acquired 'job' after ")
    assert released.startswith("leasehold: released 'job' after ")
    assert released.endswith("COMMAND exited with 3")
    with shell.locks.lock("job"):
        run = shell.start("run", "job", "-v", "--", "true")
        until(lambda: shell.waiters("job") == 1)
    waiting, acquired, released = finish(run).stderr.splitlines()
    assert waiting.startswith("leasehold: waiting for 'job': held by ")
    assert waiting.endswith(", 0 waiters ahead")
    assert "acquired 'job'" in acquired
