"""Tables and lists on standard output: shaped for the terminal when there is one, otherwise printed whole.

Text may come from the store, so unprintable characters are escaped before anything is measured.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..core.log import shown

NARROWEST = 8
"""No column is shortened to less."""
BOLD, RED, GREEN, YELLOW = "1", "31", "32", "33"


class Screen:
    """Where the output goes: how many columns it has (None: as many as needed), and whether it shows colour."""

    def __init__(self, columns: int | None = None, colour: bool = False) -> None:
        self.columns = columns
        self.colour = colour

    def painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.colour and colour and text else text


def screen() -> Screen:
    """Standard output. Colour and shortening are for terminals only; NO_COLOR or TERM=dumb turn colour off."""
    try:
        columns = os.get_terminal_size(1).columns
    except OSError:
        return Screen()  # no terminal
    colour = os.name == "posix" and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return Screen(columns or None, colour)


def table(
    rows: Sequence[Sequence[str]], *, head: bool = True, shorten: Sequence[int] = (), on: Screen | None = None
) -> str:
    """Rows as aligned columns, the first of them a head. The columns in ``shorten`` give way when the terminal is too
    narrow."""
    on = on or screen()
    rows = [[shown(cell) for cell in row] for row in rows]
    widths = _fitted([max(map(width, column)) for column in zip(*rows, strict=True)], on.columns, shorten)
    lines = []
    for number, row in enumerate(rows):
        cells = [_padded(shortened(cell, most), most) for cell, most in zip(row, widths, strict=True)]
        lines.append(on.painted("  ".join(cells).rstrip(), BOLD if head and not number else "") + "\n")
    return "".join(lines)


def fields(
    rows: Sequence[Sequence[str]], *, notes: Sequence[str] = (), colours: Sequence[str] = (), on: Screen | None = None
) -> str:
    """Rows without a head, whose last cell is never shortened: on a terminal it is wrapped in its column.

    ``notes``: for each row, text to put below it. ``colours``: for each row, the colour of its first cell."""
    on = on or screen()
    rows = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    indent = sum(widths) + 2 * len(widths)
    lines = []
    for number, (*left, last) in enumerate(rows):
        cells = [_padded(cell, most) for cell, most in zip(left, widths, strict=True)]
        if number < len(colours):
            cells[0] = on.painted(cells[0], colours[number])
        first, *rest = wrapped(last, on, indent)
        lines.append("  ".join([*cells, first]).rstrip() + "\n")
        lines += [" " * indent + piece + "\n" for piece in rest]
        for line in notes[number].splitlines() if notes else ():
            lines += [" " * (widths[0] + 2) + piece + "\n" for piece in wrapped(shown(line), on, widths[0] + 2)]
    return "".join(lines)


def wrapped(text: str, on: Screen, indent: int) -> list[str]:
    """Text in lines that fit beside ``indent`` columns, broken at blanks where possible."""
    room = None if on.columns is None else max(on.columns - indent, 2 * NARROWEST)
    if room is None or width(text) <= room:
        return [text]
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and width(lines[-1]) + 1 + width(word) > room:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
        while width(lines[-1]) > room:
            start = _start(lines[-1], room)
            lines[-1:] = [start, lines[-1][len(start) :]]
    return lines


def _fitted(widths: list[int], columns: int | None, shorten: Sequence[int]) -> list[int]:
    """The widths of the columns. The widest of those that may be shortened gives way first."""
    over = 0 if columns is None else sum(widths) + 2 * (len(widths) - 1) - columns
    while over > 0 and (wide := max(shorten, key=lambda column: widths[column], default=None)) is not None:
        if widths[wide] <= NARROWEST:
            break
        widths[wide] -= 1
        over -= 1
    return widths


def shortened(text: str, most: int) -> str:
    """Text of at most so many columns: what is too long loses its middle, because names differ at their ends."""
    if width(text) <= most:
        return text
    left = _start(text, most // 2)
    right = _start(text[::-1], most - 1 - width(left))[::-1]
    return f"{left}…{right}"


def _start(text: str, most: int) -> str:
    """As much of the start as fits into so many columns, at least one character."""
    end = 1
    while end < len(text) and width(text[: end + 1]) <= most:
        end += 1
    return text[:end]


def _padded(text: str, columns: int) -> str:
    return text + " " * (columns - width(text))


def width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    columns = 0
    for char in text:
        if category(char) not in ("Mn", "Me") and not "\u1160" <= char <= "\u11ff":  # vowels and finals of Hangul
            columns += 2 if east_asian_width(char) in "WF" else 1
    return columns
