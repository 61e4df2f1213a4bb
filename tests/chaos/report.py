"""What runs of chaos have shown: a table, and how much of the fault matrix it is; also of runs that were kept."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from leasehold.testing.history import Record, Violation, load

from .judging import hits, judged, latencies, steps_seen
from .stores import NOTHING, STORES, Goals, Setup, setup_of


def counts(records: list[Record], calm: bool) -> Goals:
    """What of the goals these records show."""
    ops = Counter((each.op, each.outcome) for each in records)
    if calm:
        return NOTHING._replace(writes=ops["write", "accepted"], grants_of_50=ops["acquire", "granted"])
    return Goals(
        writes=ops["write", "accepted"],
        pauses=len(hits(records, "pause")),
        kills=len(hits(records, "kill")),
        cuts=len(hits(records, "cut")),
        server_kills=ops["fault", "server"],
        clock_steps=ops["fault", "clock"],
        client_clock_steps=ops["fault", "wall"],
        grants_of_50=0,
    )


def total(parts: list[Goals]) -> Goals:
    return Goals(*map(sum, zip(NOTHING, *parts, strict=True)))


def missing(goals: Goals, shown: Goals) -> Goals:
    return Goals(*(max(0, goal - count) for goal, count in zip(goals, shown, strict=True)))


def row(
    store: str, seconds: float, records: list[Record], found: list[Violation], overlaps: int, shown: Goals
) -> dict[str, Any]:
    ops = Counter((each.op, each.outcome) for each in records)
    times = latencies(records)
    takeover, loss = times["takeover"], times["loss"]
    steps = f"{shown.clock_steps} ({steps_seen(records)} seen in tokens)" if shown.clock_steps else "0"
    return {
        "store": store,
        "seconds": round(seconds),
        "grants": ops["acquire", "granted"],
        "writes": shown.writes,
        "refused": ops["write", "refused"],
        "pauses": shown.pauses,
        "kills": shown.kills,
        "cuts": shown.cuts,
        "server kills": shown.server_kills,
        "clock steps": steps,
        "client clock steps": shown.client_clock_steps,
        "given up": sum(each.op == "acquire" and each.outcome != "granted" for each in records),
        "looks": ops["seen", ""],
        "losses told": sum(each.op == "lost" for each in records),
        "violations": len(found),
        "overlaps": overlaps if not setup_of(store).exclusive else "-",
        "takeover − ttl, p50 / max (ms)": spread(takeover, 1.0),
        "loss signal, p50 / p99 (ms)": spread(loss, 0.99),
    }


TAKEOVER, LOSS = 0.25, 0.05
"""How late after the ttl a killed holder is to be replaced, and after its deadline a loss to be told, in seconds."""


def too_slow(store: str, records: list[Record]) -> list[str]:
    """Which of the goals of time were missed. A clock that is set moves expiries with it: it has none for takeovers."""
    setup, times = setup_of(store), latencies(records)
    bound = setup.late if setup.late != Setup().late else TAKEOVER  # etcd and ZooKeeper have one of their own
    missed = []
    if times["takeover"] and not setup.by_clock and times["takeover"][-1] > bound:
        missed.append(f"a takeover {times['takeover'][-1] * 1000:.0f} ms after the ttl (goal {bound * 1000:.0f})")
    if times["loss"] and (late := at_share(times["loss"], 0.99)) > LOSS:
        missed.append(f"p99 of losses told {late * 1000:.0f} ms after the deadline (goal {LOSS * 1000:.0f})")
    return missed


def matrix(shown: dict[str, Goals], slow: dict[str, list[str]]) -> str:
    """What was shown of each store against what a full run has to show; below it what is missing or was too slow."""
    lines, short = [], []
    for store, count in shown.items():
        goals = setup_of(store).goals
        cells = [f"{had} / {goal}" if goal else "-" for had, goal in zip(count, goals, strict=True)]
        lack = [f"{each} {key}" for key, each in missing(goals, count)._asdict().items() if each]
        late = slow.get(store, [])
        lines.append(
            {"store": store, **dict(zip(Goals._fields, cells, strict=True)), "met": "no" if lack or late else "yes"}
        )
        if lack:
            short.append(f"not met: {store} lacks {', '.join(lack)}")
        short += [f"not met: {store}: {each}" for each in late]
    absent = [store for store in STORES if store not in shown]
    if absent:
        short.append(f"not met: nothing is kept of {', '.join(absent)}")
    return "\n".join([table(lines), "", *(short or ["all of it is met"])])


def spread(values: list[float], top: float) -> str:
    if not values:
        return "-"
    return f"{at_share(values, 0.5) * 1000:.0f} / {at_share(values, top) * 1000:.0f} ({len(values)})"


def at_share(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def table(rows: list[dict[str, Any]]) -> str:
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([str(each[key]) for key in head] for each in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


class Run:
    """One run whose history was kept, with what was noted of it when it began."""

    def __init__(self, folder: Path) -> None:
        noted = folder / "run.json"
        self.folder = folder
        self.notes = json.loads(noted.read_text()) if noted.exists() else {}
        self.store: str = self.notes.get("store", folder.name.rpartition("-")[0])
        self.calm: bool = self.notes.get("calm", False)
        self.records = load(folder.glob("*.history"))

    @property
    def ended(self) -> bool:
        """Whether it came to its end: every name was tried then."""
        names = {each.name for each in self.records if each.op == "acquire"}
        return bool(names) and {each.name for each in self.records if each.op == "took"} == names

    @property
    def made(self) -> str:
        """With which code, and when."""
        old = self.folder / "commit"
        return str(self.notes.get("commit") or (old.read_text() if old.exists() else "unknown"))

    def apart(self) -> list[Record]:
        """Its records with names that no other run has: its tokens have nothing to do with theirs."""
        return [each._replace(name=f"{self.folder.name} {each.name}") for each in self.records]

    @property
    def seconds(self) -> float:
        return self.records[-1].returned - self.records[0].returned

    @property
    def counts(self) -> Goals:
        return counts(self.records, self.calm)


def kept_runs(kept: Path, only: str = "") -> dict[str, list[Run]]:
    """All runs that came to their end, by store."""
    runs: dict[str, list[Run]] = {store: [] for store in STORES}
    for folder in sorted(each.parent for each in kept.glob("*/resource.db")):
        if only and not folder.name.startswith(f"{only}-"):
            continue
        run = Run(folder)
        if run.ended:
            runs[run.store].append(run)
        else:
            print(f"{folder.name} was broken off, and is left out: no name was tried at its end")
    return {store: of_it for store, of_it in runs.items() if of_it}


def report(kept: Path) -> int:
    """All runs whose histories were kept, judged again: a row for each store, and what of the matrix it is."""
    rows, shown, slow, bad = [], {}, {}, 0
    for store, runs in kept_runs(kept).items():
        records, found, overlapping = [], [], 0
        for run in runs:
            records += run.apart()
            violations, more = judged(store, run.records, run.folder)
            found += violations
            overlapping += more
        shown[store] = total([run.counts for run in runs])
        slow[store] = too_slow(store, records)
        made = "; ".join(sorted({run.made for run in runs}))
        seconds = sum(run.seconds for run in runs)
        rows.append({**row(store, seconds, records, found, overlapping, shown[store]), "commit": made})
        bad += len(found)
        for each in found[:20]:
            print(f"{store}: {each}")
    print(table(rows))
    print(f"\n{matrix(shown, slow)}")
    return 1 if bad else 0
