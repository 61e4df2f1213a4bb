"""What a process that waits 30 s for a held name takes of a core. All peers and rounds wait at the same time."""

from __future__ import annotations

import time
from contextlib import ExitStack

from ..figures import Rounds, Row
from ..processes import Setting, children


def run(setting: Setting) -> list[Row]:
    seconds = 3.0 if setting.quick else 30.0
    rounds = Rounds()
    with ExitStack() as stack:
        waiting = []
        for number, name, peer in setting.waiting().turns():
            holder, waiter = stack.enter_context(children(peer, 2))
            held = f"waiting{number}-{list(setting.peers).index(name)}"
            waiter.do("pairs", "warm", 3)
            holder.do("acquire", held, 120.0)
            waiter.send("cpu_of_acquire", held)
            waiting.append((name, held, holder, waiter))
        time.sleep(seconds)
        for name, held, holder, waiter in waiting:
            holder.do("release", held)
            waited, used = waiter.answer()
            rounds.add("share", name, used / waited * 100)
    return [rounds.row("share", f"waiting {seconds:g} s: share of a core", "%")]
