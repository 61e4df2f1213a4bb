"""What the server is asked while ten of one process wait, and what by one that is connected and does nothing (a driver
may look after its connections). All rounds wait at the same time: they only count."""

from __future__ import annotations

import time
from contextlib import ExitStack

from ..figures import Rounds, Row
from ..processes import Child, Setting, children
from ..relay import Relay, relayed

WAITERS = 10


def run(setting: Setting) -> list[Row]:
    ours, (module, target) = next(iter(setting.peers.items()))
    if not (port := relayed(target)):
        return []
    seconds = 3.0 if setting.quick else 60.0
    rounds = Rounds()
    with ExitStack() as stack:

        def connected() -> tuple[Relay, Child]:
            relay = stack.enter_context(Relay(port, target))
            through = target.replace(f":{port}", f":{relay.port}")
            (client,) = stack.enter_context(children((module, through), 1))
            client.do("apairs", "warm", 3)
            return relay, client

        (holder,) = stack.enter_context(children((module, target), 1))
        waiting = [connected() for _ in range(setting.rounds)]
        at_rest = [connected() for _ in range(setting.rounds)]
        for number, (_, client) in enumerate(waiting):
            holder.do("acquire", f"idle{number}", 300.0)
            client.send("queue", f"idle{number}", WAITERS)
        for _, client in at_rest:
            client.send("rest", 3600.0)
        relays = [relay for relay, _ in waiting + at_rest]
        before = [relay.settled() for relay in relays]
        time.sleep(seconds)
        rates = [(relay.messages - count) / seconds for relay, count in zip(relays, before, strict=True)]
        for busy, calm in zip(rates[: setting.rounds], rates[setting.rounds :], strict=True):
            rounds.add("at rest", ours, calm)
            rounds.add("idle", ours, busy - calm)
        for number, (_, client) in enumerate(waiting):
            holder.do("release", f"idle{number}")
            client.answer()
        for _, client in at_rest:
            client.kill()
    return [
        rounds.row("idle", f"{WAITERS} waiters of one process: messages a second", "/s", best="none"),
        rounds.row("at rest", "a process that only is connected: messages a second", "/s", best="none"),
    ]
