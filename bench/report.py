"""Results as Markdown tables, for people."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence

from .figures import Row, number
from .processes import ROOT


def machine() -> str:
    """The machine in a line: processor, cores, system, Python."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
            model = names[0] if names else model
    except OSError:
        pass
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    return f"{model}, {os.cpu_count()} cores, {system}, Python {platform.python_version()}"


def commit() -> str:
    """Which code was measured."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "src")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" and changes after it" if changed else "")


def ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def table(rows: Sequence[Row], peers: Sequence[str]) -> str:
    """A line per figure; the ratios are to ours."""
    ours, *others = peers
    lines = ["| | " + " | ".join([ours, *others]) + " |", "| --- |" + " ---: |" * len(peers)]
    for row in rows:
        mine = row.values.get(ours)
        cells = [f"**{number(mine)}** {row.unit}".strip()]
        for peer in others:
            value = row.values.get(peer)
            cell = "" if value is None else f"{number(value)} {row.unit}".strip()
            if value and mine and row.best != "none" and row.unit:
                cell += f" ({ratio(value / mine)} ×)"
            cells.append(cell)
        what = f"{row.what} ({row.note})" if row.note else row.what
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


MET = {True: "met", False: "**missed**", None: "–"}


def goals(found: Sequence[tuple[str, str, bool | None]]) -> str:
    lines = ["| goal | seen | |", "| --- | ---: | --- |"]
    lines += [f"| {goal} | {seen} | {MET[met]} |" for goal, seen, met in found]
    return "\n".join(lines)
