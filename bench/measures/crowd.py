"""1,000 tasks of one process that take and give back 100 names as often as they can."""

from __future__ import annotations

from ..figures import Rounds, Row
from ..processes import Setting, children

ENOUGH = 10
"""How many leases a task is to have on average: of fewer, one more or less would be a large part."""
SHORTEST, LONGEST = 5.0, 60.0


def run(setting: Setting) -> list[Row]:
    kinds = {name: setting.kind(name) for name in setting.waiting().peers}
    able = {name: setting.peers[name] for name, kind in kinds.items() if kind.has_asyncio() and kind.crowds}
    rounds = Rounds()
    for _, name, peer in setting._replace(peers=able).turns():
        with children(peer, 1) as (client,):
            client.do("apairs", "warm", 3)
            shares, elapsed = client.do("crowd", 1_000, 100, 1.0)
            if not setting.quick:  # now that it is known how long they need
                seconds = ENOUGH * elapsed / (sum(shares) / len(shares))
                shares, elapsed = client.do("crowd", 1_000, 100, min(LONGEST, max(SHORTEST, seconds)))
            mean = sum(shares) / len(shares)
        rounds.add("rate", name, sum(shares) / elapsed)
        rounds.add("least", name, min(shares) / mean if mean else 0.0)
    return [
        rounds.row("rate", "1,000 tasks, 100 names: leases a second", "/s", best="high"),
        rounds.row("least", "1,000 tasks, 100 names: least share of a task, to the mean", "", best="high"),
    ]
