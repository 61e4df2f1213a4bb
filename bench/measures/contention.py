"""Several processes that take and give back one name as often as they can."""

from __future__ import annotations

import time

from ..figures import Rounds, Row, jain
from ..processes import Setting, children


def run(setting: Setting) -> list[Row]:
    seconds = 0.5 if setting.quick else 3.0
    rows = []
    for count in setting.processes:
        rounds = Rounds()
        for _, name, peer in setting.waiting().turns():
            with children(peer, count) as clients:
                for client in clients:
                    client.do("pairs", "warm", 3)
                begin = time.monotonic() + 0.2
                for client in clients:
                    client.send("contend", "contended", begin, seconds)
                results = [client.answer() for client in clients]
                elapsed = time.monotonic() - begin
            counts = [got for got, _ in results]
            rounds.add("throughput", name, sum(counts) / max(seconds, elapsed))
            rounds.add("fairness", name, jain(counts))
            rounds.add("worst", name, max(worst for _, worst in results) * 1e3)
        who = f"{count} processes, one name"
        rows += [
            rounds.row("throughput", f"{who}: leases a second", "/s", best="high"),
            rounds.row("fairness", f"{who}: Jain's fairness index", "", best="high"),
            rounds.row("worst", f"{who}: longest wait", "ms"),
        ]
    return rows
