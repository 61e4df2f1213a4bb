"""``make chaos PEERS=1``: other lock libraries under the faults of chaos, and leasehold beside them.

    python -m chaos.peers.run --minutes 2 --keep folder
    python -m chaos.peers.run --only redis-py,leasehold-redis-fenced --minutes 1

One after the other. What a peer loses is a finding, not a failure. Exit status 1: the negative control was not found
out, a run showed nothing, or fenced writes of leasehold were lost or overlapped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from ..making import Plan
from ..run import CONTROL as CONTROL_SECONDS
from ..run import commit
from .judging import Findings, judge_run
from .making import make_chaos_of
from .usages import CONTROL, USAGES

NOTES = "run.json"


def run_one(usage: str, seconds: float, folder: Path, seed: int, plan: Plan, code: str = "") -> Findings:
    """``code``: the commit it is noted to be made with, if that is known already."""
    folder.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    make_chaos_of(usage, seconds, folder, seed, plan)
    package = USAGES[usage].package
    notes = {"usage": usage, "commit": code or commit(), "seed": seed, "version": f"{package} {version(package)}"}
    notes |= {"load": [round(load, 1), round(os.getloadavg()[0], 1)], "cores": os.cpu_count()}
    (folder / NOTES).write_text(json.dumps(notes))
    return judge_run(folder)


def is_found_out(found: Findings) -> bool:
    """Whether what is known to be wrong was found so."""
    return found.lost > 0 and found.overlapping > 0


def wrong(usage: str, found: Findings) -> str:
    """What a run may not show, if it does."""
    if not found.writes or not found.pauses + found.kills:
        return "nothing happened, so nothing was shown"
    if usage.endswith("-fenced") and (found.lost or found.overlapping):
        return "a fenced write was lost, or overlapped"
    return ""


def all_of(usages: Sequence[str], seconds: float, kept: Path, seed: int, every: float) -> int:
    bad, code = 0, commit()
    for usage in usages:
        try:
            found = run_one(usage, seconds, kept / f"{usage}-{seed}", seed, Plan(every=every), code)
        except Exception:  # a package that is not here, or a server that does not start: the others are run
            traceback.print_exc()
            bad += 1
            continue
        print(json.dumps({"usage": usage, **found._asdict()}), flush=True)
        if text := wrong(usage, found):
            print(f"{usage}: {text}", flush=True)
            bad += 1
    return bad


def main() -> int:
    peers = [each for each in USAGES if each != CONTROL]
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(peers), help=f"some of {', '.join(peers)}")
    parser.add_argument("--minutes", type=float, default=2.0, help="for each")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--every", type=float, default=1.0, help="seconds between faults")
    parser.add_argument("--keep", type=Path, help="where the histories go; else they are thrown away")
    options = parser.parse_args()
    usages = options.only.split(",")
    if unknown := set(usages) - set(USAGES):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(peers)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left running
    with tempfile.TemporaryDirectory(prefix="leasehold-peers-") as temporary:
        control = run_one(CONTROL, CONTROL_SECONDS, Path(temporary) / CONTROL, options.seed, Plan(every=0.7))
        print(json.dumps({"usage": CONTROL, **control._asdict()}), flush=True)
        if not is_found_out(control):
            print("the negative control, a naive lock, was not found out: all of this proves nothing")
            return 1
        bad = all_of(usages, options.minutes * 60, options.keep or Path(temporary), options.seed, options.every)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
