"""Everything that docs/performance.md shows, in one go.

    python -m bench.all --list           # what there is to do, how long it may take, and what is done
    python -m bench.all                  # do it; again, after it was stopped, to go on
    python -m bench.all redis mysql      # these stores only

Each step is a ``python -m bench.run`` whose result goes to bench/published/. It is stopped when its time is up; what it
has measured by then is kept. A step that has been done within the last hours is not done again. Steps that only count,
or look at processes that mostly sleep, run several at once; those that measure time run alone, after them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from .page import PUBLISHED
from .processes import ROOT
from .run import RESULTS, command

TOGETHER = 2
"""How many steps that only count run at once."""
GRACE = 30.0
"""How long a step that is stopped may take to stop its servers."""

RUNNING: set[subprocess.Popen[bytes]] = set()
"""They are in sessions of their own, so that an interrupt does not reach them by itself."""


class Step(NamedTuple):
    store: str
    measures: str
    options: str = ""
    minutes: float = 5.0
    """After so long it is stopped."""
    alone: bool = True

    def arguments(self) -> list[str]:
        return ["--store", self.store, "--only", self.measures, *shlex.split(self.options)]

    def command(self) -> str:
        return command(self.arguments())


OURS = "--peer leasehold"
SQL = ("mysql", "mariadb", "postgresql")
SETS = ("mongodb_set", "mongodb_one")
SERVERS = ("redis", "mongodb", "zookeeper", "etcd", *SQL)
STORES = ("sqlite", *SERVERS)
INSTEAD = {"sqlite": "filelock", "mongodb": "leasehold", "zookeeper": "kazoo", "etcd": "etcd3gw"}
INSTEAD |= dict.fromkeys(SQL, "sqlalchemy-dlock")
"""What most would use in place of leasehold; there is nothing for MongoDB."""
TOOZ = "--peer sqlalchemy-dlock --peer tooz --peer 'bare SQL'"
AWAY = {
    "redis": "--peer redis-py --peer python-redis-lock --peer pottery --peer sherlock --peer tooz "
    "--peer 'bare scripts'",
    "redlock": "--peer pottery",
    "mongodb": "",
    "postgresql": f"--peer pals {TOOZ}",
    "mariadb": TOOZ,
    "mysql": TOOZ,
    "etcd": "",
    "zookeeper": "",
}
"""With a network in between, beside which peers: nothing means all of them."""
BARE = dict.fromkeys(SQL, "bare SQL") | {
    **{"redis": "bare scripts", "mongodb": "bare commands", "etcd": "bare transactions", "zookeeper": "bare calls"},
    "redlock": "leasehold",
}
STEPS = (
    # Counting, and processes that mostly sleep.
    *(Step(store, "commands", OURS, 8, alone=False) for store in SERVERS),
    *(Step(store, "idle,takeover", OURS, 4, alone=False) for store in SERVERS),
    *(Step(store, "holding,waiting", OURS, 6, alone=False) for store in STORES),
    # Time, beside the peers.
    Step("redis", "pair", "--apart --rounds 5", 3),
    Step("redis", "pair", "--one-core --rounds 5", 3),
    Step("redis", "handoff", "--peer redis-py --peer python-redis-lock", 3),
    *(Step(store, "pair,handoff", "", 5) for store in (*SETS, "mongodb", "etcd", "zookeeper")),
    *(Step(store, "pair", "--rounds 5", 4) for store in SQL),
    *(Step(store, "handoff", "--peer 'bare SQL'", 3) for store in SQL),
    Step("sqlite", "pair,handoff,startup", "", 5),
    Step("redlock", "pair", "", 4),
    *(Step(store, "pair,handoff", f"--rtt 1ms {peers}", 6) for store, peers in AWAY.items()),
    *(Step(store, "pair,handoff", f"--rtt 10ms --peer '{bare}'", 4) for store, bare in BARE.items()),
    # How it grows.
    *(Step(store, "names", OURS, 6) for store in STORES),
    Step("redis", "crowd", "--peer redis-py", 3),
    *(Step(store, "crowd", OURS, 5) for store in STORES if store != "redis"),
    Step("redis", "contention", "--processes 8 --rounds 5", 5),
    Step("redis", "contention", f"--processes 2,32 {OURS}", 4),
    *(Step(store, "contention", f"--peer {peer}", 5) for store, peer in INSTEAD.items()),
)


def done(hours: float) -> dict[str, dict[str, float]]:
    """The commands that have been run to their end within the last hours, with what their measures took."""
    found = {}
    for file in PUBLISHED.glob("*.json"):
        result = json.loads(file.read_text())
        wanted = result["command"].partition("--only ")[2].partition(" ")[0].split(",")
        took = result.get("seconds", {})
        if time.time() - result["at"] < hours * 3600 and set(wanted) <= set(took):
            found[result["command"]] = took
    return found


def run(step: Step) -> str:
    """Do it, within its time: how it went."""
    RESULTS.mkdir(exist_ok=True)
    log = RESULTS / f"{step.store}-{step.measures.replace(',', '-')}.log"
    line = [sys.executable, "-m", "bench.run", *step.arguments(), "--into", str(PUBLISHED)]
    began = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(line, cwd=ROOT, stdout=file, stderr=file, start_new_session=True)
        RUNNING.add(process)
        try:
            process.wait(step.minutes * 60)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if stopped := process.poll() is None:
                process.send_signal(signal.SIGINT)  # it stops its servers
                try:
                    process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            RUNNING.discard(process)
    how = "stopped" if stopped else "done" if process.returncode == 0 else f"failed, see {log.relative_to(ROOT)}"
    return f"{time.monotonic() - began:4.0f} s  {how}  {step.command()}"


def chosen(stores: Iterable[str], steps: Iterable[Step] = STEPS) -> list[Step]:
    """In their order, those that may run together before the others."""
    wanted = set(stores)
    return sorted((step for step in steps if not wanted or step.store in wanted), key=lambda step: step.alone)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.all", description="everything, in one go")
    parser.add_argument("stores", nargs="*", help="only of these stores")
    parser.add_argument("--list", action="store_true", help="say what there is to do, and do nothing")
    parser.add_argument("--hours", type=float, default=12.0, help="what was done within so many is done (12)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing more after so many")
    parser.add_argument("--alone", action="store_true", help="only the steps that measure time")
    options = parser.parse_args()
    already = done(options.hours)
    steps = [step for step in chosen(options.stores) if step.alone or not options.alone]
    if options.list:
        for step in steps:
            took = already.get(step.command())
            state = f"done, {sum(took.values()):.0f} s" if took is not None else f"at most {step.minutes * 60:.0f} s"
            print(f"{state:16} {'alone   ' if step.alone else 'together'} {step.command()}")
        return
    left = [step for step in steps if step.command() not in already]
    ends = time.monotonic() + options.minutes * 60

    def go(step: Step) -> None:
        if time.monotonic() < ends:
            print(run(step), flush=True)

    with ThreadPoolExecutor(TOGETHER) as pool:
        try:
            list(pool.map(go, [step for step in left if not step.alone]))
        except KeyboardInterrupt:
            ends = 0.0  # for those that have not begun
            for process in list(RUNNING):
                process.send_signal(signal.SIGINT)
            raise
    for step in left:
        if step.alone:
            go(step)


if __name__ == "__main__":
    main()
