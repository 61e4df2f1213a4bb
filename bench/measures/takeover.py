"""From SIGKILL of the holder to the return of another process's acquire. Ttl 3 s, not renewed by the dead."""

from __future__ import annotations

import time

from ..figures import Rounds, Row, percentile
from ..processes import Setting, children

TTL = 3.0


def run(setting: Setting) -> list[Row]:
    count = 1 if setting.quick else 5
    rounds = Rounds()
    for number, name, peer in setting.waiting().turns():
        times = []
        for turn in range(count):
            with children(peer, 2) as (holder, waiter):
                held = f"takeover{number}-{turn}"
                waiter.do("pairs", "warm", 3)
                holder.do("acquire", held, TTL)
                waiter.send("acquire", held, TTL)
                time.sleep(0.3)
                killed = time.monotonic()
                holder.kill()
                times.append(waiter.answer() - killed)
                waiter.do("release", held)
        rounds.add("p50", name, percentile(times, 50) * 1e3)
        rounds.add("max", name, max(times) * 1e3)
    return [
        rounds.row("p50", f"takeover after kill −9 (ttl {TTL:g} s), p50", "ms"),
        rounds.row("max", f"takeover after kill −9 (ttl {TTL:g} s), maximum of {count}", "ms"),
    ]
