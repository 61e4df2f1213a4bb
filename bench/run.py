"""leasehold beside its peers, in one interleaved run.

    python -m bench.run                          # all measures of the embedded store: about six minutes
    python -m bench.run --only pair,handoff      # some of them
    python -m bench.run --quick                  # does it run? The figures mean little
    python -m bench.run --store redis --rtt 1ms  # pair and handoff, with a round trip of 1 ms to the server

Results go to bench/results/ as JSON. Those that are worth keeping are put into bench/published/, of which
``python -m bench.page`` makes docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from leasehold.cli.values import duration

from . import goals, network, page, report
from .figures import Row
from .processes import ROOT, Setting

MEASURES = (
    *("pair", "handoff", "contention", "crowd", "waiting", "idle", "commands", "startup", "holding"),
    *("takeover", "names"),
)
RESULTS = ROOT / "bench" / "results"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="leasehold beside its peers")
    parser.add_argument("--store", default="sqlite", help="a file of bench/stores (sqlite)")
    parser.add_argument("--only", default="", help=f"some of {', '.join(MEASURES)}, with commas")
    parser.add_argument("--rounds", type=int, default=3, help="medians are of so many rounds (3)")
    parser.add_argument("--peer", action="append", default=[], help="only this one beside leasehold; may be repeated")
    parser.add_argument("--processes", default="2,8,32", help="how many contend for one name (2,8,32)")
    cores = parser.add_mutually_exclusive_group()
    cores.add_argument("--one-core", action="store_true", help="everything on one core: the work, without wake-ups")
    cores.add_argument("--apart", action="store_true", help="servers on one core, clients on another")
    parser.add_argument("--rtt", type=duration, default=0.0, help="how long a round trip to the server takes: 1ms (0)")
    parser.add_argument("--into", type=Path, default=RESULTS, help="the folder for the result (bench/results)")
    parser.add_argument("--quick", action="store_true", help="a short run that only shows that it runs")
    found = parser.parse_args()
    usual = network.MEASURES if found.rtt else MEASURES
    found.measures = found.only.split(",") if found.only else list(usual)
    if unknown := set(found.measures) - set(MEASURES):
        parser.error(f"no such measure: {', '.join(sorted(unknown))}")
    if found.rtt and set(found.measures) - set(network.MEASURES):
        parser.error(f"--rtt is for {' and '.join(network.MEASURES)}")
    return found


def command(arguments: Sequence[str]) -> str:
    """What to type to have the same again; where the result went is nobody's business."""
    said = list(arguments)
    if "--into" in said:
        at = said.index("--into")
        del said[at : at + 2]
    return shlex.join(["python", "-m", "bench.run", *said])


def main() -> None:
    chosen = options()
    first, *_, last = sorted(os.sched_getaffinity(0)) * 2
    if chosen.one_core or chosen.apart:  # those that are started from here have it from us
        os.sched_setaffinity(0, {last if chosen.one_core else first})
    store = import_module(f"bench.stores.{chosen.store}")
    RESULTS.mkdir(exist_ok=True)
    chosen.into.mkdir(parents=True, exist_ok=True)
    load = f"{os.getloadavg()[0]:.1f}"
    if float(load) > 1:
        print(f"The load average is {load}: an idle machine gives better figures.", file=sys.stderr)
    rows: list[Row] = []
    what = "-".join(chosen.measures if chosen.only or chosen.rtt else ["all"])  # two may begin in the same second
    what += f"-{chosen.rtt * 1e3:g}ms" if chosen.rtt else ""
    file = chosen.into / f"{chosen.store}-{time.strftime('%Y%m%d-%H%M%S')}-{what}.json"
    with tempfile.TemporaryDirectory(dir=RESULTS) as folder:
        with store.peers(RESULTS / folder) as known, ExitStack() as stack:
            if chosen.apart:
                os.sched_setaffinity(0, {last})
            if unknown := set(chosen.peer) - set(known):
                raise SystemExit(f"no such peer: {', '.join(unknown)}; there are {', '.join(known)}")
            wanted = [next(iter(known)), *chosen.peer] if chosen.peer else list(known)
            peers = {name: peer for name, peer in known.items() if name in wanted}
            if hasattr(store, "prepare"):
                store.prepare(peers)
            pairs, where = getattr(store, "PAIRS", 200), goals.ONE_CORE if chosen.one_core else ""
            if chosen.rtt:
                peers = stack.enter_context(network.away(peers, chosen.rtt))
                pairs, where = min(pairs, network.PAIRS), where + goals.away(chosen.rtt)
            setting = Setting(
                peers,
                1 if chosen.quick else chosen.rounds,
                chosen.quick,
                pairs,
                tuple(int(each) for each in chosen.processes.split(",")),
                lambda: store.peers(Path(tempfile.mkdtemp(dir=RESULTS / folder))),
                getattr(store, "filling", nullcontext),
                where,
                chosen.rtt,
            )
            result: dict[str, Any] = {
                "store": chosen.store,
                "title": store.TITLE,
                "about": store.ABOUT,
                "peers": list(peers),
                "rounds": setting.rounds,
                "command": command(sys.argv[1:]),
                "machine": report.machine(),
                "commit": report.commit(),
                "date": time.strftime("%Y-%m-%d"),
                "at": time.time(),
                "load": load,
            }
            took: dict[str, float] = result.setdefault("seconds", {})
            for measure in chosen.measures:
                print(f"{measure} …", file=sys.stderr, flush=True)
                began = time.monotonic()
                try:
                    rows += import_module(f"bench.measures.{measure}").run(setting)
                    took[measure] = round(time.monotonic() - began, 1)
                except Exception:  # what the others have found is not lost with it
                    traceback.print_exc()
                    result.setdefault("failed", []).append(measure)
                result["load_after"] = f"{os.getloadavg()[0]:.1f}"
                # After each, so that a run that is cut short was not for nothing.
                file.write_text(json.dumps({**result, "rows": [row._asdict() for row in rows]}, indent=1))
    if rows:
        merged = page.merge([{**result, "rows": [row._asdict() for row in rows]}])
        print(network.table([merged], [chosen.rtt]) if chosen.rtt else page.section(merged))
    if result.get("failed"):
        sys.exit(f"failed: {', '.join(result['failed'])}")


if __name__ == "__main__":
    main()
