"""From SIGKILL of the holder to the return of another process's acquire. Ttl 3 s, not renewed by the dead.

All holders of a round are killed together: those who wait for them only wait."""

from __future__ import annotations

import time

from ..figures import Rounds, Row, percentile
from ..processes import Setting, children

TTL = 3.0
PATIENCE = 60.0


def run(setting: Setting) -> list[Row]:
    count = 1 if setting.quick else 5
    rounds = Rounds()
    able = {name: peer for name, peer in setting.waiting().peers.items() if setting.kind(name).expires}
    for number, name, peer in setting._replace(peers=able).turns():
        with children(peer, 2 * count) as clients:
            pairs = list(zip(clients[:count], clients[count:], strict=True))
            for client in clients:
                client.do("pairs", "warm", 3)
            for turn, (holder, waiter) in enumerate(pairs):
                held = f"takeover{number}-{turn}"
                holder.do("acquire", held, TTL)
                waiter.send("acquire", held, TTL)
            time.sleep(0.3)
            killed = []
            for holder, _ in pairs:
                killed.append(time.monotonic())
                holder.kill()
            times = [waiter.answer(PATIENCE) - at for at, (_, waiter) in zip(killed, pairs, strict=True)]
        rounds.add("p50", name, percentile(times, 50) * 1e3)
        rounds.add("max", name, max(times) * 1e3)
    return [
        rounds.row("p50", f"takeover after kill −9 (ttl {TTL:g} s), p50", "ms"),
        rounds.row("max", f"takeover after kill −9 (ttl {TTL:g} s), maximum of {count}", "ms"),
    ]
