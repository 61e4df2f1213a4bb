"""Tables fit the terminal; what a pipe gets is whole and without colour."""

from __future__ import annotations

import json
import re

import pytest

from leasehold.cli.table import Screen, fields, shortened, table, width, wrapped

from .conftest import Start
from .shell import Shell

LONG = "invoices:" + "x" * 60 + ":2026-11"
ESCAPE = re.compile(r"\x1b\[\d+m")


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("plain", 5),
        ("名前", 4),
        ("e\u0301", 1),  # a combining accent
        ("\u2764\ufe0f", 1),  # a variation selector
        ("ﾊﾝ", 2),  # half-width katakana
        ("\u1112\u1161\u11ab", 2),  # one syllable of three Hangul letters
        ("🙂", 2),
    ],
)
def test_width_counts_columns_of_a_terminal(text: str, columns: int) -> None:
    assert width(text) == columns


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [("short", 8, "short"), ("abcdefghij", 8, "abcd…hij"), ("名前名前名前", 8, "名前…前"), ("abcdefghij", 3, "a…j")],
)
def test_long_text_loses_its_middle(text: str, most: int, expected: str) -> None:
    assert shortened(text, most) == expected
    assert width(shortened(text, most)) <= most


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_table_fits_the_screen(columns: int) -> None:
    rows = [("NAME", "OWNER", "N"), (LONG, "host_1_" + "名" * 30, "7"), ("b", "c", "123")]
    lines = table(rows, shorten=(0, 1), on=Screen(columns)).splitlines()
    assert max(map(width, lines)) <= max(columns, 8 + 2 + 8 + 2 + 3)
    assert lines[2].split() == ["b", "c", "123"]
    whole = table(rows, shorten=(0, 1), on=Screen()).splitlines()
    assert whole[1].split() == [LONG, "host_1_" + "名" * 30, "7"]


def test_only_the_columns_that_may_are_shortened() -> None:
    rows = [("NAME", "TOKEN"), ("x" * 50, "1" * 50)]
    assert "1" * 50 in table(rows, shorten=(0,), on=Screen(40))


def test_control_characters_are_escaped_and_counted_as_escaped() -> None:
    rows = [("NAME", "N"), ("a\x1b[31m\u202eb", "1"), ("b", "2")]
    head, first, second = table(rows, on=Screen()).splitlines()
    assert first == r"a\x1b[31m\u202eb  1"
    assert head.index("N", 1) == first.index("1", -1) == second.index("2")


def test_long_fields_are_wrapped_not_shortened() -> None:
    text = fields([("name", LONG), ("data", "one two three " * 10)], on=Screen(40))
    lines = text.splitlines()
    assert max(map(width, lines)) <= 40
    assert "".join(line[6:] for line in lines[: lines.index(next(x for x in lines if x.startswith("data")))]) == LONG
    assert all(line.startswith(("name  ", "data  ", "      ")) for line in lines)
    assert LONG in fields([("name", LONG)], on=Screen())


def test_wrapped_text_keeps_every_character() -> None:
    text = "a  b " + "x" * 100 + " 名前" * 20
    assert "".join(wrapped(text, Screen(30), 5)).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("columns", [80, 200])
def test_ls_fits_the_terminal(shell: Shell, terminal: Start, columns: int) -> None:
    with shell.locks.lock(LONG), shell.locks.lock("名前" * 40, kind="resource"):
        tty = terminal(*shell.words("ls"), columns=columns, TERM="xterm", NO_COLOR="")
        lines = ESCAPE.sub("", tty.rest()).splitlines()
        assert tty.status() == 0
        piped = shell.do("ls").stdout
    assert len(lines) == 3
    assert max(map(width, lines)) <= columns
    assert lines[0].split()[:2] == ["NAME", "KIND"]
    assert LONG in piped
    assert "名前" * 40 in piped
    assert "…" not in piped
    assert (LONG in lines[1]) == (columns == 200)
    assert "…" in lines[2]


@pytest.mark.parametrize("columns", [80, 200])
def test_show_stats_and_doctor_fit_the_terminal(shell: Shell, terminal: Start, columns: int) -> None:
    with shell.locks.lock(LONG * 3, data={"long": "text " * 60}):
        for words in (("show", LONG * 3), ("stats",), ("doctor",)):
            tty = terminal(*shell.words(*words), columns=columns, TERM="xterm")
            lines = ESCAPE.sub("", tty.rest()).splitlines()
            assert tty.status() == 0
            assert max(map(width, lines)) <= columns, words


def test_colour_is_for_terminals_only(shell: Shell, terminal: Start) -> None:
    def on_terminal(**variables: str) -> str:
        tty = terminal(*shell.words("ls"), **{"TERM": "xterm", "NO_COLOR": "", **variables})
        return tty.rest()

    with shell.locks.lock("job"):
        assert on_terminal().startswith("\x1b[1mNAME")
        assert "\x1b" not in on_terminal(NO_COLOR="1")
        assert "\x1b" not in on_terminal(TERM="dumb")
        assert "\x1b" not in on_terminal(NO_COLOR="1", FORCE_COLOR="1")
        forced = shell.do("ls", env={**shell.environment, "FORCE_COLOR": "1", "TERM": "xterm"})
    assert "\x1b" not in forced.stdout


def test_doctor_colours_levels_on_a_terminal(shell: Shell, terminal: Start) -> None:
    tty = terminal(*shell.words("doctor"), TERM="xterm", NO_COLOR="")
    assert tty.rest().startswith("\x1b[32mok\x1b[0m")


def test_json_is_never_shortened(shell: Shell, terminal: Start) -> None:
    with shell.locks.lock(LONG * 3):
        tty = terminal(*shell.words("ls", "--json"), columns=40, TERM="xterm", NO_COLOR="")
        assert json.loads(tty.rest())[0]["name"] == LONG * 3
