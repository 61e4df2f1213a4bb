"""``make chaos``: real processes and a real server, faults aimed at whoever holds the lease, and a judge.

    python -m chaos.run --store sqlite,redis --minutes 5 --keep folder
    python -m chaos.run --report folder

Workers (:mod:`chaos.worker`) contend for two or three names and raise fenced counters. Every second or so whoever holds
a name is stopped (SIGSTOP) for 0.8 to 1.8 ttl, killed, cut off from the server, or has its wall clock set; now and then
the server is killed, or the member that leads, or its wall clock is set. All histories are files, judged at the end by
:mod:`leasehold.testing.history`. Exit status 1 on any violation.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from leasehold.testing.history import Violation

from .judging import LOADED, judged
from .making import CALM, FULL, TESTS, Chaos, Plan
from .report import counts, kept_runs, missing, report, row, table, total
from .stores import NOTHING, STORES, setup_of

CONTROL = 14.0
"""For how long the negative control runs."""
HARM = {"resource order", "lost write"}
"""What two holders at once do to a counter: the older writes after the newer, or on what it had read before that."""


def make_chaos(
    store: str, seconds: float, folder: Path, seed: int, plan: Plan, late: float = LOADED
) -> tuple[dict[str, Any], list[Violation]]:
    folder.mkdir(parents=True, exist_ok=True)
    calm = not plan.every
    (folder / "run.json").write_text(json.dumps({"store": store, "calm": calm, "commit": commit(), "seed": seed}))
    records = Chaos(store, folder, seed, plan).run(seconds)
    found, overlapping = judged(store, records, folder, late)
    lasted = records[-1].returned - records[0].returned
    return row(store, lasted, records, found, overlapping, counts(records, calm)), found


def is_refused(found: list[Violation]) -> bool:
    """Whether what is known to be wrong was found so: two held a name at once, and that did harm."""
    rules = {each.rule for each in found}
    return "overlap" in rules and bool(rules & HARM)


def commit() -> str:
    """Which code it is made with, and when."""
    words = ["git", "describe", "--always", "--dirty"]
    said = subprocess.run(words, cwd=TESTS, capture_output=True, text=True).stdout.strip()
    return f"{said or 'unknown'}, {time.strftime('%Y-%m-%d')}"


def full(store: str, kept: Path) -> list[tuple[str, Plan]]:
    """What has to be run to fill the matrix, given what is kept: with faults, and fifty clients without."""
    runs = [run for run in kept_runs(kept, store).get(store, []) if run.store == store]
    lacks = missing(setup_of(store).goals, total([run.counts for run in runs]))
    plans = []
    if lacks.grants_of_50:
        plans.append(("calm", CALM._replace(goals=NOTHING._replace(grants_of_50=lacks.grants_of_50))))
    if any(lacks._replace(grants_of_50=0)):
        plans.append(("faults", FULL._replace(goals=lacks._replace(grants_of_50=0))))
    return plans


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", default=",".join(STORES))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--every", type=float, default=1.0, help="seconds between faults; 0: none, 50 clients")
    parser.add_argument(
        "--full", action="store_true", help="what of the matrix is not kept yet, and no longer than that"
    )
    parser.add_argument("--keep", type=Path, help="where the histories go; else they are thrown away")
    parser.add_argument("--report", type=Path, help="judge the histories that are kept there, and no more chaos")
    options = parser.parse_args()
    if unknown := set(options.store.split(",")) - set(STORES):
        parser.error(f"no such store: {', '.join(sorted(unknown))}; there are {', '.join(STORES)}")
    if options.report:
        return report(options.report)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left running
    rows, bad = [], 0
    with tempfile.TemporaryDirectory(prefix="leasehold-chaos-") as temporary:
        kept = options.keep or Path(temporary)
        control = Plan(every=0.7)
        found = make_chaos("naive", CONTROL, Path(temporary) / "naive", options.seed, control)[1]
        if not is_refused(found):
            print("the negative control, a naive lock, was not refused: all of this proves nothing")
            bad += 1
        for store in options.store.split(","):
            plans = [("faults", Plan(every=options.every)) if options.every else ("calm", CALM)]
            for what, plan in full(store, kept) if options.full else plans:
                folder = kept / f"{store}-{what}-{options.seed}"
                try:
                    figures, found = make_chaos(store, options.minutes * 60, folder, options.seed, plan)
                except Exception:  # a server that does not start, say: the others are run all the same
                    traceback.print_exc()
                    bad += 1
                    continue
                rows.append(figures)
                bad += len(found)
                if not figures["writes"] or (plan.every and not figures["pauses"] + figures["kills"]):
                    print(f"{store}: nothing happened, so nothing was shown")
                    bad += 1
                print(json.dumps(figures, ensure_ascii=False), flush=True)
                for each in found[:20]:
                    print(f"  {each}")
    if rows:
        print(table(rows))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
