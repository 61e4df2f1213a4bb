"""From one process's release to another's return from acquire, which has been waiting for some time by then.

And a release by itself, that nobody waits for, after as long a rest: no hand-off is faster than what it begins with.
"""

from __future__ import annotations

import random
import time

from ..figures import Rounds, Row, percentile
from ..processes import Child, Setting, children

IN_THE_QUEUE = 30
"""At a distance, whose acquire has begun waits only some round trips later: so many more are given to it."""
FEWEST, LONGEST = 10, 8.0
"""A peer that looks once a second has so many hand-offs in a round, or as many as it has in so many seconds."""


def run(setting: Setting) -> list[Row]:
    count = FEWEST if setting.quick else 40
    rounds = Rounds()
    slow: dict[str, list[float]] = {}
    for _, name, peer in setting.waiting().turns():
        with children(peer, 2) as (one, other):
            _pass_on(one, other, setting.rtt)  # the first one makes files and threads
            times: list[float] = []
            ends = time.monotonic() + LONGEST
            while len(times) < FEWEST or (len(times) < count and time.monotonic() < ends):
                times.append(_pass_on(one, other, setting.rtt))
            alone = [_give(one) for _ in range(FEWEST)]
        rounds.add("p50", name, percentile(times, 50) * 1e3)
        rounds.add("alone", name, percentile(alone, 50) * 1e3)
        slow.setdefault(name, []).extend(times)
    for name, times in slow.items():
        rounds.add("p99", name, percentile(times, 99) * 1e3)  # of all rounds: one alone has too few for it
    return [
        rounds.row("p50", f"hand-off between two processes, p50{setting.where}", "ms"),
        rounds.row("p99", f"hand-off between two processes, p99{setting.where}", "ms"),
        rounds.row("alone", f"a release that nobody waits for, after a rest, p50{setting.where}", "ms"),
    ]


def _pass_on(one: Child, other: Child, rtt: float) -> float:
    one.do("acquire", "handoff")
    other.send("acquire", "handoff")
    _rest(IN_THE_QUEUE * rtt)
    released: float = one.do("release", "handoff")
    acquired: float = other.answer()
    other.do("release", "handoff")
    return acquired - released


def _give(one: Child) -> float:
    one.do("acquire", "alone")
    _rest()
    took: float = one.do("give", "alone")
    return took


def _rest(longer: float = 0.0) -> None:
    """So long that no poller is met at the same point each time."""
    time.sleep(random.uniform(0.02, 0.12) + longer)
