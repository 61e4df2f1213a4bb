"""leasehold beside its peers, in one interleaved run.

    python -m bench.run                          # all measures of the embedded store: about six minutes
    python -m bench.run --only pair,handoff      # some of them
    python -m bench.run --quick                  # does it run? The figures mean little

Results go to bench/results/ as JSON. A full run also writes its store's section of docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from importlib import import_module

from . import report
from .figures import Row
from .processes import ROOT, Setting

MEASURES = ("pair", "handoff", "contention", "waiting", "startup", "holding", "takeover")
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="leasehold beside its peers")
    parser.add_argument("--store", default="sqlite", help="a file of bench/stores (sqlite)")
    parser.add_argument("--only", default="", help=f"some of {', '.join(MEASURES)}, with commas")
    parser.add_argument("--rounds", type=int, default=3, help="medians are of so many rounds (3)")
    parser.add_argument("--quick", action="store_true", help="a short run that only shows that it runs")
    found = parser.parse_args()
    found.measures = found.only.split(",") if found.only else list(MEASURES)
    if unknown := set(found.measures) - set(MEASURES):
        parser.error(f"no such measure: {', '.join(sorted(unknown))}")
    return found


def main() -> None:
    chosen = options()
    store = import_module(f"bench.stores.{chosen.store}")
    RESULTS.mkdir(exist_ok=True)
    load = f"{os.getloadavg()[0]:.1f}"
    if float(load) > 1:
        print(f"The load average is {load}: an idle machine gives better figures.", file=sys.stderr)
    rows: list[Row] = []
    file = RESULTS / f"{chosen.store}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    with tempfile.TemporaryDirectory(dir=RESULTS) as folder:
        with store.peers(RESULTS / folder) as peers:
            setting = Setting(peers, 1 if chosen.quick else chosen.rounds, chosen.quick)
            result: dict[str, object] = {
                "title": store.TITLE,
                "about": store.ABOUT,
                "peers": list(peers),
                "rounds": setting.rounds,
                "command": shlex.join(["python", "-m", "bench.run", *sys.argv[1:]]),
                "machine": report.machine(),
                "commit": report.commit(),
                "date": time.strftime("%Y-%m-%d"),
                "load": load,
            }
            for measure in chosen.measures:
                print(f"{measure} …", file=sys.stderr, flush=True)
                rows += import_module(f"bench.measures.{measure}").run(setting)
                result["load_after"] = f"{os.getloadavg()[0]:.1f}"
                # After each, so that a run that is cut short was not for nothing.
                file.write_text(json.dumps({**result, "rows": [row._asdict() for row in rows]}, indent=1))
    text = report.section(result, rows)
    print(text)
    if not chosen.only and not chosen.quick:
        PAGE.write_text(report.page(PAGE.read_text() if PAGE.exists() else "", text))


if __name__ == "__main__":
    main()
