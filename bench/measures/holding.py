"""Many leases held by one process, renewed all the while: the share of a core, memory per lease, and what the server is
asked."""

from __future__ import annotations

from contextlib import ExitStack

from ..figures import Rounds, Row
from ..processes import Setting, children
from ..relay import Relay, relayed

SECONDS = 60.0


def run(setting: Setting) -> list[Row]:
    ours = next(iter(setting.peers))
    counts = (1, 100) if setting.quick else (1, 1_000, 10_000)
    rounds = {count: Rounds() for count in counts}
    module, target = setting.peers[ours]
    port = relayed(target)
    with ExitStack() as stack:  # all at the same time: what a process uses is counted by itself
        clients = []
        relays: list[Relay] = []
        for number in range(setting.rounds):
            for count in counts:
                through = target
                if port:
                    relays.append(stack.enter_context(Relay(port, target)))
                    through = target.replace(f":{port}", f":{relays[-1].port}")
                (client,) = stack.enter_context(children((module, through), 1))
                clients.append((count, f"many{number}-{count}-", client))
        with setting.filling(target):
            for count, prefix, client in clients:
                client.send("take_many", prefix, count)
            for count, _, client in clients:
                rounds[count].add("bytes", ours, client.answer() / 1024)
        seconds = 2.0 if setting.quick else SECONDS
        before = [relay.messages for relay in relays]
        for _, _, client in clients:
            client.send("hold_many", seconds)
        answers = [client.answer() for _, _, client in clients]
        for (count, _, _), relay, sent in zip(clients if port else (), relays, before, strict=True):
            rounds[count].add("messages", ours, (relay.messages - sent) / seconds)
        for (count, _, _), (share, lost) in zip(clients, answers, strict=True):
            rounds[count].add("share", ours, share * 100)
            rounds[count].add("lost", ours, lost)
        for _, _, client in clients:
            client.kill()  # the store goes with them
    rows = []
    for count in counts:
        rows.append(rounds[count].row("share", f"{count:,} held (ttl 30 s): share of a core", "%", best="none"))
        if port:
            rows.append(rounds[count].row("messages", f"{count:,} held: messages a second", "/s", best="none"))
        if count > 1:
            rows.append(rounds[count].row("bytes", f"{count:,} held: resident memory per lease", "KiB", best="none"))
    some, most = (rounds[count].row("share", "", "").values[ours] for count in counts[-2:])
    growth = most / some / (counts[-1] / counts[-2]) if some and most is not None else None
    return [
        *rows,
        rounds[counts[-1]].row("lost", f"{counts[-1]:,} held for {SECONDS:g} s: lost", "", best="none"),
        Row(f"share of a core per lease, {counts[-1]:,} held to {counts[-2]:,}", "", {ours: growth}, "none"),
    ]
