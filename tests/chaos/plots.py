"""Pictures of the histories that chaos has kept, for docs/guarantees.md.

python -m chaos.plots folder ../docs/img
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes

from leasehold.testing.history import Record

from .judging import latencies, pauses
from .report import kept_runs

SHOWN = 20.0
"""Seconds of a run that the picture of it shows."""
COLOURS = dict(
    zip("abcdef", ("tab:blue", "tab:orange", "tab:purple", "tab:green", "tab:olive", "tab:cyan"), strict=True)
)


def timeline(axes: Axes, records: list[Record]) -> None:
    """Who held which name when, and what was done to them; the stretch with the most losses."""
    lost = [each.returned for each in records if each.op == "lost"]
    begin = max(lost, key=lambda at: sum(at <= other < at + SHOWN for other in lost)) - 2.0
    shown = [each for each in records if begin <= each.returned < begin + SHOWN]
    workers = sorted({worker(each) for each in shown if each.op == "acquire"}, key=lambda name: int(name[1:]))
    row = {name: at for at, name in enumerate(workers)}
    ends = {(each.name, each.token): each.invoked for each in records if each.op == "release"}
    ends |= {(each.name, each.token): each.invoked for each in records if each.op == "lost"}
    killed = {(each.name, each.token): each.returned for each in records if each.outcome == "kill"}
    for each in shown:
        if each.op == "acquire" and each.outcome == "granted":
            key = each.name, each.token
            end = min(ends.get(key, begin + SHOWN), killed.get(key, begin + SHOWN))
            axes.barh(row[worker(each)], end - each.returned, 0.6, each.returned - begin, color=COLOURS[each.name])
        elif each.op == "lost" and worker(each) in row:
            axes.plot(each.invoked - begin, row[worker(each)] + 0.42, "v", color="black", markersize=5)
        elif each.op == "fault" and each.outcome == "server":
            axes.axvline(each.returned - begin, color="tab:red", linewidth=1)
        elif each.op == "fault" and each.outcome == "kill" and each.owner in row:
            axes.plot(each.returned - begin, row[each.owner], "x", color="tab:red", markersize=9, markeredgewidth=2)
    troubles = [each for each in records if each.outcome == "cut"] + pauses(records)
    for each in troubles:
        if begin <= each.returned < begin + SHOWN and each.owner in row:
            shade = "lightgrey" if each.outcome == "pause" else "mistyrose"
            axes.barh(row[each.owner], each.limit or 0.0, 0.9, each.returned - begin, color=shade, zorder=0)
    axes.set_yticks(range(len(workers)), workers)
    axes.set_xlim(0, SHOWN)
    axes.set_xlabel("seconds")


def worker(record: Record) -> str:
    return record.owner.partition(".")[0]


def strips(axes: Axes, values: dict[str, list[float]], goal: float, title: str) -> None:
    """Every value in milliseconds, a line of dots for each store."""
    for at, each in enumerate(values.values()):
        axes.plot([value * 1e3 for value in each], [at] * len(each), "|", color="tab:blue", markersize=9)
    axes.axvline(goal * 1e3, color="tab:green", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(values)), list(values))
    axes.invert_yaxis()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("ms")


def main() -> None:
    kept, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "leasehold"
    runs = kept_runs(kept)
    figure, axes = pyplot.subplots(figsize=(9, 3.2), layout="constrained")
    shown = runs.get("redis", next(iter(runs.values())))
    timeline(axes, next(run.records for run in shown if not run.calm))
    figure.savefig(folder / "chaos-timeline.svg", metadata={"Date": None})
    times = {store: latencies([each for run in of_it for each in run.apart()]) for store, of_it in runs.items()}
    figure, both = pyplot.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    strips(
        both[0], {store: each["takeover"] for store, each in times.items()}, 0.25, "takeover after a kill, less the ttl"
    )
    strips(both[1], {store: each["loss"] for store, each in times.items()}, 0.05, "loss told after the deadline")
    both[1].set_yticklabels([])
    figure.savefig(folder / "chaos-latencies.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
