"""Acquire and release of a name that nobody else wants, in one process per peer."""

from __future__ import annotations

from contextlib import ExitStack

from ..figures import Rounds, Row, percentile
from ..processes import Setting, children

BATCHES = 5


def run(setting: Setting) -> list[Row]:
    count = 40 if setting.quick else setting.pairs
    rounds = Rounds()
    with ExitStack() as stack:
        clients = {name: stack.enter_context(children(peer, 1))[0] for name, peer in setting.peers.items()}
        kinds = {name: setting.kind(name) for name in clients}
        sides = {name: ["pairs"] * kind.threads + ["apairs"] * kind.has_asyncio() for name, kind in kinds.items()}
        for name, client in clients.items():
            for command in sides[name]:
                client.do(command, "warm", count)
        taken: dict[tuple[int, str, str], list[float]] = {}
        for batch in range(BATCHES):  # short turns: what disturbs the machine meanwhile hits all peers
            for number, name, _ in setting.turns():
                for command in sides[name]:
                    times = clients[name].do(command, f"{command}-{batch % 2}", count)
                    taken.setdefault((number, name, command), []).extend(times)
    for (_, name, command), times in taken.items():
        rounds.add(f"{command} p50", name, percentile(times, 50) * 1e6)
        rounds.add(f"{command} p99", name, percentile(times, 99) * 1e6)
    return [
        rounds.row(f"{command} {which}", f"acquire + release, {side}, {which}{setting.where}", "µs")
        for command, side in (("pairs", "threads"), ("apairs", "asyncio"))
        for which in ("p50", "p99")
    ]
