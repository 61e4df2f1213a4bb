"""Many leases held by one process, renewed all the while: the share of a core, and memory per lease."""

from __future__ import annotations

from ..figures import Rounds, Row
from ..processes import Setting, children


def run(setting: Setting) -> list[Row]:
    ours = next(iter(setting.peers))
    seconds = 2.0 if setting.quick else 30.0
    rows = []
    for count in (1, 100) if setting.quick else (1, 100, 10_000):
        rounds = Rounds()
        for number in range(1 if setting.quick else 3):
            with children(setting.peers[ours], 1) as (client,):
                found = client.do("hold_many", f"many{number}-", count, seconds)
            if found["lost"]:
                raise RuntimeError(f"{found['lost']} of {count} leases were lost: the figures would mean nothing")
            rounds.add("share", ours, found["share"] * 100)
            rounds.add("bytes", ours, found["bytes"] / 1024)
        rows.append(rounds.row("share", f"{count:,} held (ttl 30 s): share of a core", "%", best="none"))
        if count > 1:
            rows.append(rounds.row("bytes", f"{count:,} held: resident memory per lease", "KiB", best="none"))
    return rows
