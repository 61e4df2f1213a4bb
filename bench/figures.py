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
    goal: float | None = None
    """The most that ours should be, in the unit."""
    no_slower_than: str | None = None
    """The peer that ours should not be slower than."""
    best: str = "low"
    """Whether low or high figures are the good ones; "none" where neither is."""
    note: str = ""
    rounds: dict[str, list[float]] | None = None

    def missed(self, ours: str) -> str | None:
        """Why ours misses its goal, if it does."""
        value = self.values.get(ours)
        if value is None:
            return None
        if self.goal is not None and value > self.goal:
            return f"goal: at most {self.goal:g} {self.unit}"
        other = self.values.get(self.no_slower_than or "")
        if other is not None and value > other:
            return f"goal: no slower than {self.no_slower_than}"
        return None


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
