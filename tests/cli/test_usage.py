"""Help, and what is said of a wrong command line."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import leasehold
from leasehold.cli.descriptions import options_of
from leasehold.cli.options import COMMANDS, OPTIONS, Options, parse
from leasehold.cli.run import plan
from leasehold.cli.say import span
from leasehold.cli.usage import page
from leasehold.cli.values import duration

from .shell import LIMIT, Shell


@pytest.mark.parametrize(
    ("word", "seconds"),
    [
        ("30", 30),
        ("30s", 30),
        ("500ms", 0.5),
        ("5m", 300),
        ("1h", 3600),
        ("2d", 172800),
        ("1.5", 1.5),
        ("0", 0),
        (".5s", 0.5),
    ],
)
def test_duration_is_parsed(word: str, seconds: float) -> None:
    assert duration(word) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "word", ["", "s", "-1", "1x", "1 s", "nan", "inf", "1e3", "1_0", "1.2.3", "٣", "1sm", "5mss", "."]
)
def test_invalid_duration_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        duration(word)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (0.0004, "0.0004s"),
        (0.25, "0.25s"),
        (4.24, "4.2s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (303, "5m03s"),
        (7800, "2h10m"),
        (273600, "3d4h"),
    ],
)
def test_span_shows_two_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_help_of_every_command(shell: Shell) -> None:
    main = shell.do("--help")
    assert main.returncode == 0
    assert shell.do("help").stdout == main.stdout
    for command in COMMANDS:
        assert f"leasehold {command}" in main.stdout
        done = shell.do(command, "-h")
        assert done.returncode == 0
        assert done.stdout == shell.do("help", command).stdout
        assert done.stdout.startswith(f"usage: leasehold {command}")
        assert "Example" in done.stdout
    assert shell.do("run", "job", "--help").stdout.startswith("usage: leasehold run")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_page_fits_80_columns(command: str) -> None:
    lines = page(command).splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line != line.rstrip()]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_page_has_the_options_of_the_parser(command: str) -> None:
    listed = [line for line in page(command).splitlines() if re.match(r"  (-\w|    --)", line)]
    flags = [flag for line in listed for flag in re.findall(r"(?<![\w-])--?[a-z][\w-]*", line[:27].partition("--")[0])]
    flags += [word for line in listed for word in line.split()[:2] if word.startswith("--")]
    assert sorted(flags) == sorted(OPTIONS[command])
    for option in options_of(command):
        takes_value = OPTIONS[command][option.flags[0]][1] is not None
        (line,) = [line for line in listed if option.flags[-1] in line.split()[:2]]
        assert takes_value == bool(option.value)
        assert not option.value or f"{option.flags[-1]} {option.value}" in line


def test_version(shell: Shell) -> None:
    assert shell.do("--version").stdout == f"leasehold {leasehold.__version__}\n"


def test_installed_script_runs_the_command(shell: Shell) -> None:
    script = sys.executable.rpartition("/")[0] + "/leasehold"
    words = [script, "run", "job", "--", "sh", "-c", "exit 6"]
    assert subprocess.run(words, env=shell.environment, timeout=LIMIT).returncode == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "a command is missing: use one of run, once, "),
        (("rnu", "job"), "did you mean run?"),
        (("run",), "NAME is missing"),
        (("run", "--", "echo", "hi"), "NAME is missing before '--': use leasehold run NAME -- COMMAND"),
        (("once", "--ttl", "5s", "--", "echo", "hi"), "NAME is missing"),
        (("run", "job"), "COMMAND is missing"),
        (("run", "job", "--"), "COMMAND is missing"),
        (("run", "job", "--tll", "5", "true"), "did you mean --ttl?"),
        (("run", "job", "--ttl"), "--ttl needs a value"),
        (("run", "job", "--ttl", "soon", "true"), "--ttl: invalid duration 'soon': use seconds"),
        (("run", "job", "--ttl", "0", "true"), "above 0"),
        (("run", "job", "--ttl", "10ms", "true"), "too short"),
        (("run", "job", "--ttl", "1000d", "true"), "a year"),
        (("run", "job", "--no-wait=yes", "true"), "--no-wait takes no value"),
        (("run", "job", "--no-wait", "--timeout", "5", "true"), "exclude each other"),
        (("run", "job", "-n", "-w", "5", "true"), "exclude each other"),
        (("run", "job", "-w", "true"), "-w: invalid duration 'true'"),
        (("run", "job", "-x", "true"), "unknown option '-x'"),
        (("run", "job", "-nx", "true"), "unknown option '-nx'"),
        (("run", "job", "--limit", "2", "--shared", "true"), "--limit and --shared exclude each other"),
        (("run", "job", "--limit", "0", "true"), "use 1 or more"),
        (("run", "job", "--limit", "10000000", "true"), "limit must be 1 to "),
        (("once", "job", "--shared", "true"), "unknown option '--shared'"),
        (("help", "rnu"), "unknown command 'rnu'; did you mean run?"),
        (("help", "run", "ls"), "unexpected argument 'ls'"),
        (("-help",), "did you mean --help?"),
        (("ls", "--jsno"), "did you mean --json?"),
        (("completion",), "SHELL is missing: use bash, zsh or fish"),
        (("completion", "bash", "x"), "unexpected argument 'x'"),
        (("run", "job", "--on-busy-exit", "256", "true"), "0 to 255"),
        (("run", "job", "--on-unavailable", "cry", "true"), "fail, skip or run"),
        (("run", "", "true"), "1 to 512 characters"),
        (("run", "a\nb", "true"), "control character"),
        (("run", "job", "--owner", "", "true"), "owner"),
        (("run", "job", "--json", "true"), "unknown option '--json'"),
        (("ls", "a", "b"), "unexpected argument 'b'"),
        (("stats", "a"), "unexpected argument 'a'"),
        (("show",), "NAME is missing"),
        (("show", ""), "1 to 512 characters"),
        (("ls", "a\nb"), "control character"),
        (("ls", "a\udcff"), "lone surrogate"),
        (("ls", "--namespace", "x" * 65), "namespace"),
        (("ls", "--url", "somewhere"), "scheme"),
        (("ls", "--force"), "unknown option '--force'"),
    ],
)
def test_wrong_command_line_is_explained(shell: Shell, words: tuple[str, ...], said: str) -> None:
    done = shell.do(*words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "--help" in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert shell.processes() == []


def parsed(*words: str) -> Options:
    return parse([*words, "job", "--", "true"])


def test_short_options() -> None:
    assert parsed("run", "-n").no_wait
    assert parsed("run", "-v").verbose
    assert parsed("run", "-w", "5s").timeout == 5
    assert parsed("run", "-w5s").timeout == 5
    assert parsed("run", "-w=5s").timeout == 5
    both = parsed("once", "-vn")
    assert both.verbose
    assert both.no_wait
    both = parsed("run", "-vw", "2m")
    assert both.verbose
    assert both.timeout == 120


def test_name_that_starts_with_a_dash_follows_two_dashes() -> None:
    for words in (["--", "-x", "--", "echo"], ["--", "-x", "echo"]):
        options = parse(["run", *words])
        assert (options.name, options.line) == ("-x", ["echo"])


def test_plan_leaves_room_for_two_renewals() -> None:
    assert plan(30, None) == (10, 5)
    every, kill_after = plan(3, None)
    assert (every, kill_after) == (1, 0.5)
    for ttl, kill_after in ((0.5, 0.05), (1.0, 0.5), (2.0, 1.0), (30.0, 20.0), (600.0, 400.0)):
        every, _ = plan(ttl, kill_after)
        assert 2 * every + kill_after < ttl * 0.99 - 0.05
