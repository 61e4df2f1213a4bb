"""Many leases held by one process, renewed all the while: the share of a core, and memory per lease."""

from __future__ import annotations

from contextlib import ExitStack

from ..figures import Rounds, Row
from ..processes import Setting, children

SECONDS = 60.0


def run(setting: Setting) -> list[Row]:
    ours = next(iter(setting.peers))
    counts = (1, 100) if setting.quick else (1, 1_000, 10_000)
    rounds = {count: Rounds() for count in counts}
    few = [(count, number) for count in counts[:2] for number in range(setting.rounds)]
    many = [[(count, number)] for count in counts[2:] for number in range(setting.rounds)]
    for together in (few, *many):  # what a process uses is counted by itself, but a server has its limits
        with ExitStack() as stack:
            clients = [(*each, stack.enter_context(children(setting.peers[ours], 1))[0]) for each in together]
            for count, number, client in clients:
                client.send("hold_many", f"many{number}-{count}-", count, 2.0 if setting.quick else SECONDS)
            for count, _, client in clients:
                found = client.answer()
                rounds[count].add("share", ours, found["share"] * 100)
                rounds[count].add("bytes", ours, found["bytes"] / 1024)
                rounds[count].add("lost", ours, found["lost"])
    rows = []
    for count in counts:
        rows.append(rounds[count].row("share", f"{count:,} held (ttl 30 s): share of a core", "%", best="none"))
        if count > 1:
            rows.append(rounds[count].row("bytes", f"{count:,} held: resident memory per lease", "KiB", best="none"))
    some, most = (rounds[count].row("share", "", "").values[ours] for count in counts[-2:])
    growth = most / some / (counts[-1] / counts[-2]) if some and most is not None else None
    return [
        *rows,
        rounds[counts[-1]].row("lost", f"{counts[-1]:,} held for {SECONDS:g} s: lost", "", best="none"),
        Row(f"share of a core per lease, {counts[-1]:,} held to {counts[-2]:,}", "", {ours: growth}, "none"),
    ]
