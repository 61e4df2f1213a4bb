"""What COMMAND inherits from ``run``, and what ``run`` returns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .shell import LIMIT, Shell, alive, end_input, finish, line_of, until


@pytest.mark.parametrize("status", [0, 1, 42, 255])
def test_run_exits_with_the_status_of_command(shell: Shell, status: int) -> None:
    assert shell.do("run", "job", "--", "sh", "-c", f"exit {status}").returncode == status


def test_killed_command_gives_128_and_the_signal(shell: Shell) -> None:
    assert shell.do("run", "job", "--", "sh", "-c", "kill -KILL $$").returncode == 128 + 9


def test_lease_is_held_while_command_runs_and_free_afterwards(shell: Shell) -> None:
    """A5, D6: the owner names the host, the process and a random part."""
    run = shell.start(
        "run",
        "job",
        "--",
        "sh",
        "-c",
        "echo $LEASEHOLD_NAME; echo $LEASEHOLD_TOKEN; echo $LEASEHOLD_OWNER; cat",
        stdin=subprocess.PIPE,
    )
    name, token, owner = line_of(run), line_of(run), line_of(run)
    held = shell.locks.inspect("job")
    assert held is not None
    assert (name, token, owner) == ("job", str(held.token), held.owner)
    assert f"_{run.pid}_" in owner
    end_input(run)
    assert run.wait() == 0
    assert shell.locks.inspect("job") is None


def test_each_run_gets_a_greater_token(shell: Shell) -> None:
    tokens = [int(shell.do("run", "job", "sh", "-c", "echo $LEASEHOLD_TOKEN").stdout) for _ in range(3)]
    assert tokens[0] < tokens[1] < tokens[2]


def test_owner_and_namespace(shell: Shell) -> None:
    run = shell.start(
        "run", "--owner", "me", "--namespace=other", "job", "--", "sh", "-c", "echo $LEASEHOLD_OWNER; sleep 100"
    )
    assert line_of(run) == "me"
    assert shell.locks.inspect("job") is None, "the lease is in another namespace"
    assert json.loads(shell.do("show", "job", "--namespace", "other", "--json").stdout)["owner"] == "me"
    run.terminate()
    assert finish(run).returncode == 128 + signal.SIGTERM


def test_options_stand_before_or_after_name_but_not_in_command(shell: Shell) -> None:
    done = shell.do("run", "--ttl", "10s", "job", "--no-wait", "--", "echo", "--json", "--", "-h", "--ttl")
    assert done.stdout == "--json -- -h --ttl\n"
    assert shell.do("run", "job", "--ttl=10", "echo", "--ttl", "x").stdout == "--ttl x\n"
    assert shell.do("run", "--", "--odd", "echo", "hello").stdout == "hello\n"


def test_command_inherits_input_output_and_open_files(shell: Shell) -> None:
    read, write = os.pipe()
    os.write(write, b"from a file\n")
    os.close(write)
    run = shell.start(
        "run",
        "job",
        "--",
        "sh",
        "-c",
        f"cat; cat /dev/fd/{read}; echo oops >&2",
        stdin=subprocess.PIPE,
        pass_fds=[read],
    )
    os.close(read)
    stdout, stderr = run.communicate("from stdin\n", timeout=LIMIT)
    assert (stdout, stderr) == ("from stdin\nfrom a file\n", "oops\n")


def test_command_inherits_signal_dispositions(shell: Shell) -> None:
    """Python ignores SIGPIPE and ``run`` handles other signals: COMMAND has the defaults. What the caller ignores stays
    ignored."""

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    words = ("run", "job", "--", "grep", "^Sig", "/proc/self/status")
    seen = dict(line.split() for line in shell.do(*words, preexec_fn=ignore).stdout.splitlines())
    assert int(seen["SigBlk:"], 16) == 0
    assert int(seen["SigIgn:"], 16) & 0x7FFFFFFF == 1 << (signal.SIGHUP - 1)


def test_missing_command_exits_with_127_without_acquiring(shell: Shell) -> None:
    done = shell.do("run", "job", "--min-hold", "1h", "--", "no-such-program")
    assert done.returncode == 127
    assert "no-such-program" in done.stderr
    assert shell.do("run", "job", "--no-wait", "--", "./no-such-file").returncode == 127, "it never took the lease"


def test_command_that_is_not_executable_exits_with_126(shell: Shell) -> None:
    (shell.folder / "text").write_text("hello")
    (shell.folder / "broken").write_text("#!/no/such/interpreter\n")
    (shell.folder / "broken").chmod(0o755)
    assert shell.do("run", "job", "--", "./text").returncode == 126
    assert shell.do("run", "job", "--", str(shell.folder)).returncode == 126
    assert shell.do("run", "job", "--", "./broken").returncode == 127
    assert shell.locks.inspect("job") is None


def test_script_without_interpreter_line_is_run_by_sh(shell: Shell) -> None:
    (shell.folder / "script").write_text("echo $1 $#")
    (shell.folder / "script").chmod(0o755)
    assert shell.do("run", "job", "--", "./script", "one", "two").stdout == "one 2\n"


def test_min_hold_outlasts_command(shell: Shell) -> None:
    assert shell.do("run", "job", "--min-hold", "1h", "--", "true").returncode == 0
    assert shell.do("run", "job", "--no-wait", "--", "true").returncode == 75


def test_background_process_of_command_neither_delays_run_nor_keeps_the_lease(shell: Shell) -> None:
    """It is not killed either."""
    done = shell.do("run", "job", "--", "sh", "-c", "sleep 100 >/dev/null 2>&1 & echo $!")
    assert done.returncode == 0
    assert alive(int(done.stdout))
    assert shell.do("run", "job", "--no-wait", "--", "true").returncode == 0


def test_run_leaves_no_process_and_no_fifo(shell: Shell) -> None:
    """No zombie either: in a container no other process may collect it."""
    code = (
        "import ctypes, os, subprocess, sys\n"
        "ctypes.CDLL(None).prctl(36, 1)\n"  # PR_SET_CHILD_SUBREAPER: this process adopts orphans
        "assert subprocess.run(sys.argv[1:]).returncode == 0\n"
        "try: sys.exit(f'left over: {os.waitpid(-1, 0)}')\n"
        "except ChildProcessError: pass\n"
    )
    words = shell.words("run", "job", "--", "true")
    subprocess.run([sys.executable, "-c", code, *words], env=shell.environment, check=True, timeout=LIMIT)
    assert shell.processes() == []
    assert os.listdir(f"{shell.database}-wake") == []


@pytest.mark.timeout(360)  # up to 160 processes, one after the other
@pytest.mark.parametrize("each", [4, pytest.param(20, marks=pytest.mark.variant)])
def test_eight_processes_count_together(shell: Shell, tmp_path: Path, each: int) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0\n")
    count = f"n=$(cat {counter}); echo $((n + 1)) > {counter}"

    def client(number: int) -> list[str]:
        runs = (shell.do("run", "count", "--", "sh", "-c", count) for _ in range(each))
        return [run.stderr or f"status {run.returncode}" for run in runs if run.returncode or run.stderr]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(client, range(8))) == [[]] * 8
    assert counter.read_text() == f"{8 * each}\n", "SAFETY: writes were lost"


def test_start_up_loads_nothing_heavy(shell: Shell) -> None:
    words = [sys.executable, "-X", "importtime", "-m", "leasehold", "run", "job", "--", "true"]
    done = subprocess.run(words, env=shell.environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "leasehold.stores.sqlite.threads" in loaded
    heavy = {"argparse", "asyncio", "logging", "dataclasses", "subprocess", "inspect", "socket", "random"}
    assert not loaded & heavy
    unused = {f"leasehold.cli.{name}" for name in ("completion", "descriptions", "usage", "table", "passwords", "look")}
    assert not loaded & unused


def test_run_without_url_uses_the_state_folder(shell: Shell, tmp_path: Path) -> None:
    environment = {**shell.environment, "XDG_STATE_HOME": str(tmp_path / "state")}
    del environment["LEASEHOLD_URL"]
    assert shell.do("run", "job", "--", "true", env=environment).returncode == 0
    assert (tmp_path / "state" / "leasehold" / "leases.db").exists()


def test_long_log_of_the_database_is_checkpointed(shell: Shell) -> None:
    """A run leaves the write-ahead log as it is, unless the log is longer than 512 KiB."""
    shell.locks.close()
    log = Path(f"{shell.database}-wal")
    assert shell.do("run", "job", "--", "true").returncode == 0
    assert log.stat().st_size > 0
    with log.open("r+b") as file:
        file.truncate(600 * 1024)
    assert shell.do("run", "job", "--", "true").returncode == 0
    assert not log.exists()
    assert until(lambda: shell.do("run", "job", "--no-wait", "--", "true").returncode == 0)
