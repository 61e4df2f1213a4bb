"""What the server is asked for each hand-off, with 1 to 1,000 in the queue."""

from __future__ import annotations

import sys

from ..figures import Rounds, Row
from ..processes import Setting, children
from ..relay import Relay, relayed

WAITERS = (1, 10, 20, 200, 1_000)
PATIENCE = 120.0
"""How long the whole queue may take to be served. One that is not in that time is the longest that is tried."""


def run(setting: Setting) -> list[Row]:
    ours, (module, target) = next(iter(setting.peers.items()))
    if not (port := relayed(target)):
        return []
    rows, found = [], []
    for count in WAITERS[:2] if setting.quick else WAITERS:
        rounds = Rounds()
        try:
            for number in range(setting.rounds):
                rounds.add("each", ours, _each(module, target, port, f"queue{number}-{count}", count))
        except RuntimeError as error:
            print(f"with {count:,} in the queue: {error}", file=sys.stderr)
            break
        rows.append(rounds.row("each", f"messages per hand-off, {count:,} in the queue", "", best="none"))
        found.append(rows[-1].values[ours] or 0.0)
        if count >= 200:
            what = f"messages per hand-off, 1 to {count:,} in the queue: largest to smallest"
            rows.append(Row(what, "", {ours: max(found) / min(found)}, "none"))
    return rows


def _each(module: str, target: str, port: int, name: str, count: int) -> float:
    """Messages for each of so many that have the name one after the other."""
    with Relay(port, target) as relay:
        through = target.replace(f":{port}", f":{relay.port}")
        with children((module, through), 2) as (holder, client):
            client.do("apairs", "warm", 3)
            holder.do("acquire", name, 300.0)
            client.send("queue", name, count)
            before = relay.settled()
            holder.do("release", name)
            client.answer(PATIENCE)
            return (relay.messages - before - 1) / count  # the last of them gives back what nobody waits for
