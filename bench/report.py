"""The results as Markdown, for people."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence

from .figures import Row
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


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.01 or value == 0 else f"{value:.4f}"


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


def misses(rows: Sequence[Row], ours: str) -> str:
    found = [
        f"- {row.what}: {number(row.values[ours])} {row.unit} ({why})" for row in rows if (why := row.missed(ours))
    ]
    return (
        "Goals that this run missed:\n\n" + "\n".join(found) if found else "This run met every goal that it measured."
    )


def section(result: dict[str, object], rows: Sequence[Row]) -> str:
    """One store's part of docs/performance.md."""
    peers = result["peers"]
    assert isinstance(peers, list)
    return f"""## {result["title"]}

{result["about"]}

{table(rows, peers)}

Ratios are to leasehold in the same run. {misses(rows, peers[0])}

- Command: `{result["command"]}`
- Machine: {result["machine"]}; load average {result["load"]} when it began and {result["load_after"]} when it ended
- {result["date"]}, commit {result["commit"]}; medians of {result["rounds"]} rounds
"""


PAGE = """# Performance

Made by `make bench`; written by the benchmark itself. All peers are measured in one run, in turns, so that
whatever else the machine does hits all alike: compare the ratios, not the times of two runs. What each line measures
is said at the top of the file in `bench/measures/`.

leasehold's own work per lease is more than its peers do: it writes a fenced record with an owner and an expiry,
keeps a queue in order, and renews. filelock asks the kernel for `flock`, which knows no expiry, no token and no order.

"""


def page(old: str, new: str) -> str:
    """docs/performance.md with one store's section put in, or in the place of its last one."""
    sections = {each.partition("\n")[0]: each for each in old.split("\n## ")[1:]}
    title, _, body = new.removeprefix("## ").partition("\n")
    sections[title] = f"{title}\n{body}"
    return PAGE + "\n\n".join(f"## {each.strip()}" for each in sections.values()) + "\n"
