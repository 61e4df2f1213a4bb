"""How an acquire and release that nobody contends for fares when many other names are held in the same store."""

from __future__ import annotations

from contextlib import nullcontext

from ..figures import Rounds, Row, percentile
from ..processes import Setting, children

FULL = {"etcd": 10_000, "zookeeper": 10_000}
"""How many names there are at most; a store that is not named here is tried with 100,000."""
TURNS, BATCHES = 5, 5
FILLERS = 2
"""How many processes fill the store."""


def run(setting: Setting) -> list[Row]:
    ours, (module, target) = next(iter(setting.peers.items()))
    most = 1_000 if setting.quick else FULL.get(target.partition(":")[0], 100_000)
    count = min(40, setting.pairs) if setting.quick else setting.pairs
    rounds = Rounds()
    # Two namespaces of one store would share its tables, so the empty one is a store of its own.
    with setting.fresh() if setting.fresh is not None else nullcontext(setting.peers) as empty:
        with children((module, target), 1 + FILLERS) as (client, *crowd), children(empty[ours], 1) as (alone,):
            with setting.filling(target):
                for number, each in enumerate(crowd):
                    each.send("fill", f"name-{number}-", most // FILLERS)
                for each in crowd:
                    each.answer()
            for each in (client, alone):
                each.do("pairs", "warm", count)
            for _ in range(TURNS):
                times: tuple[list[float], list[float]] = [], []
                for _ in range(BATCHES):  # short turns: what disturbs the machine meanwhile hits both
                    for each, taken in zip((alone, client), times, strict=True):
                        taken.extend(each.do("pairs", "alone", count))
                few, many = (percentile(taken, 50) for taken in times)
                rounds.add("few", ours, few * 1e6)
                rounds.add("many", ours, many * 1e6)
                rounds.add("ratio", ours, many / few)
            for each in crowd:
                each.kill()
    return [
        rounds.row("few", "acquire + release among 1 live name, threads, p50", "µs", best="none"),
        rounds.row("many", f"acquire + release among {most:,} live names, threads, p50", "µs", best="none"),
        rounds.row("ratio", f"acquire + release among {most:,} live names, to that among 1", "", best="none"),
    ]
