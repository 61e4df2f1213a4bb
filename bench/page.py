"""docs/performance.md and its pictures, from the results that are kept in bench/published/.

    python -m bench.page

A store may have several files, of runs that measured different things: the newest figure of each line counts. Files of
which no line counts any more are named, and can be deleted. Why a goal is missed is in ``why.toml``.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from . import goals, network, report
from .figures import Row
from .processes import ROOT

PUBLISHED = ROOT / "bench" / "published"
WHY = ROOT / "bench" / "why.toml"
PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "img"
ORDER = tuple(goals.OF)

INTRO = """# Performance

leasehold next to what you would use instead, and next to the same work without a library (*bare*), in one interleaved
run: whatever else the machine does affects all of them alike. The ratios within a run are what counts; microseconds
depend on the machine. Each file in `bench/measures/` says at its top what it measures.

A call that is answered in 30 µs takes 40 µs or 120, depending on whether the kernel has put client and server on one
core or has to wake another: left to it, that is luck, and differs from process to process. Redis is fast enough for
that to matter, so its pairs are measured twice. With `--apart` the server has one core and the clients another, as if
they were machines of their own: a call takes as long as it takes to be heard. *On one core* (`--one-core`) nobody has
to be woken, and only work is measured. Left to the kernel, the bare scripts' process may share the server's core while
others do not: then the ratio to them is as on one core, or worse. Until 18 November 2026 the goals were judged on one
core.

"The same ± 20 %" of messages per hand-off, on Redis, means that none is more than 20 % from the middle: the largest is
at most 1.5 times the smallest. With more in the queue, or names in the store, 1.25 times is the limit. What those who
wait ask by themselves, from time to time, while nothing is handed on, is taken off.

leasehold does more per lease than most of its peers: it writes a fenced record with an owner and an expiry, keeps a
queue in order, and renews.

`make bench STORE=redis` measures a store, with `BENCH="--rtt 1ms"` from some way off; `make bench-all` measures
everything, `leasehold bench --url …` your store. `python -m bench.page` writes this page from the results in
`bench/published/`. Commits that runs name may be of work that was rewritten before it was published.

**Not up to date:** the drivers of Redis, etcd, ZooKeeper, MongoDB and the SQL stores were rewritten on 19 November
2026. All figures of before that are to be measured anew; only the table with a network in between is newer. A pair on
Redis takes longer since: in a run on a busy machine (20 November, load average 4 to 8) it took 1.4 × redis-py's Lock
with threads, 1.45 × with asyncio, and 1.7 × with a client of one's own. The goals of 0.8, 0.85 and 1 × are missed.
"""

ADVICE = """## How cost grows, and what you can do about it

- **Names.** An acquire looks up one key. The number of other names does not matter; dead records are purged a few at a
  time.
- **Leases held.** Renewals are batched: one command per store and period, whatever the number of leases; only its size
  grows. A longer `ttl` means fewer renewals, and a later takeover after a crash.
- **Waiters.** Only the waiter whose turn it is is woken. Each waiter also checks the store every 5 s, in case a message
  was lost, which shows the store that it is alive: a thousand waiters are some 200 commands a second. If you have that
  many, let one task of a process wait for all. On Redis, one check covers up to 100 waiters of a `Locks` (in a cluster,
  those for names of one slot): a thousand waiters in one process are three commands a second. In MongoDB and in a SQL
  database the queue is part of the name's record, and one check covers all waiters of a `Locks` for that name. But each
  hand-off reads and writes the record: keep to some hundreds of waiters per name there.
- **Processes.** Each `Locks` has one connection that listens, and a few that work. Make one `Locks` per process.
- **Contention on one name** is limited by the hand-off: a round trip for the release and a message to the next holder.
  leasehold hands a name on in the order of arrival, so with two processes or more every lease is a hand-off. What keeps
  no order, or only looks from time to time (filelock, redis-py, advisory locks that are polled), lets whoever has just
  had the name take it again, which is cheap: more leases a second, and the others wait: see the longest wait, and
  Jain's index. MySQL's own `GET_LOCK`, by sqlalchemy-dlock, is handed on by the server, in memory: several times as
  fast, with neither a token nor an expiry, and gone with its connection. Take the lease for a batch of work rather than
  for each item; shard the name if the work allows it.
- **asyncio** costs one more turn of the event loop per command than threads. uvloop helps where the event loop is what
  takes the time: on Redis when client and server share a core; else it makes no difference.
"""


class Store(NamedTuple):
    """What is known of one store."""

    key: str
    title: str
    about: str
    peers: list[str]
    rows: list[Row]
    runs: list[dict[str, Any]]

    def judged(self) -> list[goals.Judged]:
        return goals.judged(self.key, self.rows)


def merge(results: Sequence[dict[str, Any]]) -> Store:
    """Several runs of a store, in the order of time, as one: later figures take the place of earlier ones."""
    rows: dict[str, Row] = {}
    whence: dict[str, int] = {}
    for number, result in enumerate(results):
        rows.update((each["what"], Row(**each)) for each in result["rows"])
        whence.update((each["what"], number) for each in result["rows"])
    last, count = results[-1], set(whence.values())
    runs = [result for number, result in enumerate(results) if number in count]
    seen = {peer for row in rows.values() for peer in row.values}
    peers = [peer for peer in dict.fromkeys(peer for result in results for peer in result["peers"]) if peer in seen]
    return Store(last["store"], last["title"], last["about"], peers, list(rows.values()), runs)


def missed(stores: Iterable[Store]) -> str:
    """A line for each goal that is missed, with the reason; what has none is said on stderr too."""
    reasons = tomllib.loads(WHY.read_text())
    lines = []
    for store in stores:
        for goal, seen, met in store.judged():
            if met is False:
                known = reasons.get(store.key, {}).items()
                why = next((why for words, why in known if goal.startswith(words)), "not known yet")
                lines.append(f"- {store.title}, {goal} ({seen}): {why}.")
                if why == "not known yet":
                    print(f"no reason in why.toml: [{store.key}] {goal!r}", file=sys.stderr)
    return "Missed, and why:\n\n" + "\n".join(lines) if lines else ""


def section(store: Store) -> str:
    rows = [row for row in store.rows if not network.is_away(row)]
    peers = [peer for peer in store.peers if any(peer in row.values for row in rows)]
    runs = "\n".join(
        f"- `{run['command']}`: {run['date']}, commit {run['commit']}, medians of {run['rounds']} rounds; load average "
        f"{run['load']} when it began and {run['load_after']} when it ended"
        for run in store.runs
    )
    return f"""## {store.title}

{store.about}

{report.table(rows, peers)}

Ratios are to leasehold in the same run.

{report.goals(store.judged())}

{runs}
- Machine: {store.runs[-1]["machine"]}
"""


def all_goals(stores: Iterable[Store]) -> str:
    """Those of stores that were not measured too."""
    lines = ["| store | goal | seen | |", "| --- | --- | ---: | --- |"]
    found = {store.key: store for store in stores}
    for key in ORDER:
        title = found[key].title if key in found else key
        judged = found[key].judged() if key in found else goals.judged(key, ())
        lines += [f"| {title} | {goal} | {seen} | {report.MET[met]} |" for goal, seen, met in judged]
    return "\n".join(lines)


GROWTH = (
    ("messages", "in the queue", r"messages per hand-off, ([\d,]+) in the queue", "messages per hand-off"),
    ("processes", "processes at one name", r"(\d+) processes, one name: leases a second", "leases a second"),
    ("holding", "leases held, ttl 30 s", r"([\d,]+) held \(ttl 30 s\): share of a core", "% of a core"),
)


def pictures(stores: Sequence[Store]) -> list[str]:
    """Pairs and hand-offs of every store, leasehold and the others, and how cost grows; the names of what was drawn."""
    drawn = []
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "leasehold"
    from matplotlib import pyplot

    PICTURES.mkdir(exist_ok=True)
    for what, unit, file in (
        (goals.PAIR, "µs", "pair"),
        (goals.APAIR, "µs", "pair-asyncio"),
        (goals.HANDOFF, "ms", "handoff"),
    ):
        shown = [(store, row) for store in stores for row in store.rows if row.what == what]
        if not shown:
            continue
        figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.5 * len(shown)), layout="constrained")
        for at, (store, row) in enumerate(shown):
            for peer, value in row.values.items():
                if value is None:
                    continue
                ours, bare = peer == store.peers[0], peer.startswith("bare")
                marker, colour = ("D", "tab:blue") if ours else ("|", "black") if bare else ("o", "tab:orange")
                axes.plot(value, at, marker, color=colour, markersize=12 if bare else 7, alpha=0.9)
        axes.set_xscale("log")
        axes.set_yticks(range(len(shown)), [store.title for store, _ in shown])
        axes.invert_yaxis()
        axes.set_xlabel(f"{what}, {unit}; blue: leasehold, orange: peers, line: bare driver")
        axes.grid(axis="x", alpha=0.3)
        figure.savefig(PICTURES / f"{file}.svg", metadata={"Date": None})
        drawn.append(file)
    for file, across, pattern, up in GROWTH:
        figure, axes = pyplot.subplots(figsize=(8, 3.5), layout="constrained")
        for store in stores:
            seen = [(re.match(pattern, row.what), row.values.get(store.peers[0])) for row in store.rows]
            points = sorted((int(at[1].replace(",", "")), value) for at, value in seen if at and value is not None)
            if len(points) > 1:
                axes.plot(*zip(*points, strict=True), "o-", label=store.title)
        if axes.lines:
            axes.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
            axes.legend(fontsize="small")
            axes.grid(alpha=0.3)
            figure.savefig(PICTURES / f"{file}.svg", metadata={"Date": None})
            drawn.append(file)
    return drawn


def main() -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(PUBLISHED.glob("*.json")):
        result = {**json.loads(file.read_text()), "file": file.name}
        found.setdefault(result["store"], []).append(result)
    if not found:
        raise SystemExit("there is nothing in bench/published/: copy results there that are worth keeping")
    stores = [merge(sorted(found[key], key=lambda run: run["at"])) for key in ORDER if key in found]
    counting = {run["file"] for store in stores for run in store.runs}
    if useless := sorted({run["file"] for runs in found.values() for run in runs} - counting):
        print(f"of these no line counts any more: {' '.join(useless)}", file=sys.stderr)
    drawn = "\n\n".join(f"![{name}](img/{name}.svg)" for name in pictures(stores))
    judged = "## Every goal", all_goals(stores), missed(stores)
    parts = [INTRO, *judged, drawn, network.section(stores), ADVICE, *map(section, stores)]
    PAGE.write_text("\n\n".join(part.strip() for part in parts if part) + "\n")


if __name__ == "__main__":
    main()
