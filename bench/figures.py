"""Small statistics, and what a measure returns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One line of the report: a figure of each peer, the medians of the rounds."""

    what: str
    unit: str
    values: dict[str, float | None]
    """By peer, in the unit; None where the peer cannot."""
    best: str = "low"
    """Whether low or high figures are the good ones; "none" where neither is."""
    note: str = ""
    rounds: dict[str, list[float]] | None = None


def number(value: float | None) -> str:
    """A figure as it is printed: three digits, or all of them with commas from 1,000 on; never with an exponent."""
    if value is None:
        return "–"
    if value >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.01 or value == 0 else f"{value:.4f}"


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: 1 when all got the same, 1/n when one got everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


class Rounds:
    """Figures of several rounds: ``add`` them, then ``row`` has their medians."""

    def __init__(self) -> None:
        self._figures: dict[str, dict[str, list[float]]] = {}

    def add(self, figure: str, peer: str, value: float) -> None:
        self._figures.setdefault(figure, {}).setdefault(peer, []).append(value)

    def row(self, figure: str, what: str, unit: str, **options: object) -> Row:
        found = self._figures[figure]
        values: dict[str, float | None] = {peer: statistics.median(each) for peer, each in found.items()}
        return Row(what, unit, values, rounds=found, **options)  # type: ignore[arg-type]
