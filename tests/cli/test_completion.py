"""Completion, in the real shells: the line is typed on a terminal, then Tab is pressed."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from leasehold.cli.completion import script
from leasehold.cli.options import COMMANDS, OPTIONS, SHELLS
from servers.find import locate

from .conftest import Start
from .shell import LIMIT, Shell, until

START = {
    "bash": ("--norc", "--noprofile", "-i"),
    "zsh": ("-f", "-i"),
    "fish": ("--no-config", "-i"),
}
LOAD = {
    "bash": 'eval "$(leasehold completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(leasehold completion zsh)"',
    "fish": "leasehold completion fish | source",
}
Complete: TypeAlias = Callable[[str], str]


def program(shell: str) -> str:
    found = "bash" if shell == "bash" else locate(shell)
    if found is None:
        pytest.skip(f"{shell} is not on this machine: scripts/install-servers {shell}")
    return str(found)


@pytest.fixture(params=SHELLS)
def complete(request: pytest.FixtureRequest, shell: Shell, terminal: Start) -> Complete:
    """Types the start of a line into a shell and presses Tab. Returns the line as it is then, without the space at its
    end (zsh takes that space away again when the cursor moves)."""
    scripts = Path(sys.executable).parent
    tools = shell.folder / "tools"
    tools.mkdir()
    (tools / "only-program").write_text("#!/bin/sh\n")
    (tools / "only-program").chmod(0o755)
    variables = {"PATH": f"{scripts}:{tools}:{shell.environment['PATH']}", "HOME": str(shell.folder), "TERM": "xterm"}
    name = request.param
    tty = terminal(program(name), *START[name], columns=200, **variables)
    loaded = shell.folder / "loaded"
    tty.type(f"{LOAD[name]}; echo yes > loaded\n")
    until(loaded.exists)

    def complete(line: str) -> str:
        answer = shell.folder / "answer"
        answer.unlink(missing_ok=True)
        tty.type(f"{line}\t")
        time.sleep(0.5)  # zsh and fish discard keys that come together with Tab
        tty.type("\x01echo '\x05' > answer\n")
        until(lambda: answer.exists() and answer.read_text().endswith("\n"))
        return answer.read_text().rstrip()

    return complete


def test_commands_options_and_choices_are_completed(complete: Complete) -> None:
    assert complete("leasehold comp") == "leasehold completion"
    assert complete("leasehold completion fi") == "leasehold completion fish"
    assert complete("leasehold help onc") == "leasehold help once"
    assert complete("leasehold run job --on-una").rstrip("=") == "leasehold run job --on-unavailable"
    assert complete("leasehold run job --on-unavailable sk") == "leasehold run job --on-unavailable skip"
    assert complete("leasehold run --on-unavailable=sk") == "leasehold run --on-unavailable=skip"
    assert complete("leasehold --namespace run ls --js") == "leasehold --namespace run ls --json"
    assert complete("leasehold ls --retr") == "leasehold ls --retr"


def test_words_of_command_are_completed_as_without_leasehold(complete: Complete, shell: Shell) -> None:
    (shell.folder / "only-file").write_text("")
    assert complete("leasehold run job -- only-p") == "leasehold run job -- only-program"
    assert complete("leasehold run job --ttl 5 only-p") == "leasehold run job --ttl 5 only-program"
    assert complete("leasehold run job -- cat only-f") == "leasehold run job -- cat only-file"


@pytest.mark.parametrize("complete", ["zsh", "fish"], indirect=True)
def test_command_is_completed_by_its_own_completion(complete: Complete) -> None:
    """Not in bash, which has no public way to ask for another command's completion."""
    assert complete("leasehold run job -- leasehold help onc") == "leasehold run job -- leasehold help once"
    assert complete("leasehold once job leasehold help onc") == "leasehold once job leasehold help once"


def test_names_of_leases_are_completed(complete: Complete, shell: Shell) -> None:
    with shell.locks.lock("invoice:42"), shell.locks.lock("other"):
        assert complete("leasehold show invo") == "leasehold show invoice:42"
        assert complete("leasehold break --force invoice:4") == "leasehold break --force invoice:42"


@pytest.mark.parametrize("name", SHELLS)
def test_script_has_every_command_and_option(name: str) -> None:
    text = script(name)
    assert not re.search(r"@[A-Z]+@", text), "a marker of the template was not replaced"
    for command in COMMANDS:
        assert re.search(rf"\b{command}\b", text)
        for option in OPTIONS[command]:
            flag = option if name != "fish" else f"-{'l' if option[1] == '-' else 's'} {option.lstrip('-')}"
            assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text), f"{command} {option}"


@pytest.mark.parametrize("name", SHELLS)
def test_shell_accepts_the_script(name: str, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(script(name))
    done = subprocess.run([program(name), "-n", "script"], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_names_are_printed_one_a_line(shell: Shell) -> None:
    with shell.locks.lock("b 1"), shell.locks.lock("b:2"), shell.locks.lock("c"):
        assert shell.do("completion", "names", "b").stdout == "b 1\nb:2\n"
        assert shell.do("completion", "names", "--namespace", "other").stdout == ""


def test_names_of_a_store_that_is_away_are_empty_after_a_second(shell: Shell) -> None:
    assert shell.do("init").returncode == 0
    shell.locks.close()
    blocker = sqlite3.connect(shell.database, isolation_level=None)
    blocker.execute("PRAGMA locking_mode = EXCLUSIVE")
    blocker.execute("BEGIN EXCLUSIVE")
    began = time.monotonic()
    done = shell.do("completion", "names")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.monotonic() - began < 4, "the store itself would be tried for 5 s and more"
    blocker.close()


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "nonsense://x", "sqlite:///nowhere/x.db", "sqlite:///new.db"])
def test_names_are_silent_on_every_error(shell: Shell, url: str) -> None:
    done = shell.do("completion", "names", "--url", url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (shell.folder / "new.db").exists()


def test_completion_of_an_unknown_shell_suggests_the_nearest(shell: Shell) -> None:
    done = shell.do("completion", "bsh")
    assert done.returncode == 2
    assert "unknown shell 'bsh'; did you mean bash?" in done.stderr
