"""What the server is asked for each hand-off, with 1 to 1,000 in the queue.

Tasks of one process take turns at a name: each asks for it, waits, has it, gives it back and asks again, so that
as many wait all the time. One more waits for another name: to begin and end to listen is no part of a hand-off.
Counted are whole turns, with the asking, of a queue that has been going on for a while. What is asked while nothing is
handed on (those who wait look from time to time, a driver looks after its connections) is counted before, and taken off
for the time that it took.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import starmap, takewhile

from ..figures import Rounds, Row
from ..processes import Setting, children
from ..relay import Relay, relayed

WAITERS = (1, 10, 20, 200), (1_000,)
WARM, SECONDS = 0.5, 1.0
"""For how long the name is handed on before it counts, and then; longer if there were not so many hand-offs:"""
ENOUGH = 50
LOOKS = 5.0
"""How often those who wait look by themselves. What is counted meanwhile is counted for a multiple of it, and those who
wait do not come all at once: they would look all at once."""
PER_LOOK = {"zookeeper": 8}
"""How many requests a look may be, where that is not 4. Who sends more has not heard that it can listen, and polls."""
AFTER = 0.5
"""A hand-off may have something to send when it is over."""
LESS = "less what those who wait ask by themselves, from time to time"
PATIENCE = 120.0
"""How long a queue may take to form, or to be handed on in. One that takes longer is the longest that is tried."""


def run(setting: Setting) -> list[Row]:
    ours, (module, target) = next(iter(setting.peers.items()))
    if not (port := relayed(target)):
        return []
    rows: list[Row] = []
    found: list[float | None] = []
    each = partial(_each, module, target, port)
    for counts in (WAITERS[0][:2],) if setting.quick else WAITERS:
        tried = [(count, number) for number in range(setting.rounds) for count in counts]
        if len(counts) > 1:
            with ThreadPoolExecutor(len(tried)) as pool:  # at the same time, for they only count
                messages = list(pool.map(each, *zip(*tried, strict=True)))
        else:  # a server has its limits; what has failed once is not tried again
            messages = list(takewhile(lambda found: found is not None, starmap(each, tried)))
        rounds = Rounds()
        for (count, _), counted in zip(tried, messages, strict=False):
            if counted is not None:
                rounds.add(str(count), ours, counted)
        for count in counts:
            what = f"messages per hand-off, {count:,} in the queue"
            done = sum(
                counted is not None and each == count for (each, _), counted in zip(tried, messages, strict=False)
            )
            if done < setting.rounds:
                rows.append(Row(what, "", {ours: None}, "none", f"failed: only {done} of {setting.rounds} rounds"))
            else:
                rows.append(rounds.row(str(count), what, "", best="none", note=LESS))
            found.append(rows[-1].values[ours])
        what = f"messages per hand-off, 1 to {counts[-1]:,} in the queue: largest to smallest"
        rows.append(Row(what, "", {ours: _spread(found)}, "none", LESS))
        if None in found:
            break
    return rows


def _spread(found: list[float | None]) -> float | None:
    """Largest to smallest. None if one is missing, or so small that what was taken off was more than there was."""
    known = [each for each in found if each is not None and each > 0]
    return max(known) / min(known) if len(known) == len(found) else None


def _each(module: str, target: str, port: int, count: int, number: int) -> float | None:
    """Messages for each hand-off while so many wait. None if it cannot be said, and a word on why."""
    try:
        return _counted(module, target, port, count, f"queue{number}-{count}")
    except RuntimeError as error:
        print(f"with {count:,} in the queue: {error}", file=sys.stderr)
        return None


def _counted(module: str, target: str, port: int, count: int, name: str) -> float:
    with Relay(port, target) as relay, children((module, target.replace(f":{port}", f":{relay.port}")), 1) as (client,):

        def do(command: str, seconds: float) -> tuple[int, int, float]:
            """The answer, what is asked meanwhile, and for how long it was."""
            before, began = relay.messages, time.monotonic()
            found = client.do(command, seconds, within=PATIENCE)
            return found or 0, relay.messages - before, time.monotonic() - began

        try:
            client.do("line_up", name, count + 1, LOOKS * (1 + count // 250), within=PATIENCE)
            do("turns", WARM)
            do("rest", AFTER)
            _, asked, idle = do("rest", 2 * LOOKS)
            if asked / idle > 2 + PER_LOOK.get(target.partition(":")[0], 4) * count / LOOKS:
                raise RuntimeError(f"{asked} messages in {idle:.0f} s of waiting: they do not listen, they poll")
            turns, messages, took = 0, 0, 0.0
            while turns < ENOUGH and took < PATIENCE:
                more, sent, seconds = do("turns", SECONDS)
                turns, messages, took = turns + more, messages + sent, took + seconds
            if turns < ENOUGH:
                raise RuntimeError(f"{turns} hand-offs in {took:.0f} s")
            _, after, rest = do("rest", AFTER)
        finally:
            client.kill()  # it would not end: there are still those who wait
    return (messages + after - asked / idle * (took + rest)) / turns
