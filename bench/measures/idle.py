"""What the server is asked while one or ten of one process wait, beyond what one sends that is connected and does
nothing (a driver may look after its connections). All rounds wait at the same time: they only count."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack

from ..figures import Rounds, Row
from ..processes import Child, Setting, children
from ..relay import Relay, relayed

WAITERS = 1, 10


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
        at_rest = [connected() for _ in range(setting.rounds)]
        waiting = [(count, *connected()) for count in WAITERS for _ in range(setting.rounds)]
        for number, (count, _, client) in enumerate(waiting):
            holder.do("acquire", f"idle{number}", 300.0)
            client.send("queue", f"idle{number}", count)
        for _, client in at_rest:
            client.send("rest", 3600.0)
        relays = [relay for relay, _ in at_rest] + [relay for _, relay, _ in waiting]
        for relay in relays:
            relay.settled()
        before = [relay.messages for relay in relays]
        time.sleep(seconds)
        rates = [(relay.messages - count) / seconds for relay, count in zip(relays, before, strict=True)]
        calm = statistics.median(rates[: setting.rounds])
        for rate in rates[: setting.rounds]:
            rounds.add("at rest", ours, rate)
        for (count, _, _), rate in zip(waiting, rates[setting.rounds :], strict=True):
            rounds.add(str(count), ours, rate - calm)
        for _, client in at_rest + [(relay, client) for _, relay, client in waiting]:
            client.kill()
    who = {count: f"{count} waiter{'s' if count > 1 else ''} of one process: messages a second" for count in WAITERS}
    return [
        *(rounds.row(str(count), who[count], "/s", best="none") for count in WAITERS),
        rounds.row("at rest", "a process that only is connected: messages a second", "/s", best="none"),
    ]
