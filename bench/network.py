"""A server that is some way off: a relay between each client and its server, which delays what passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from . import goals
from .figures import Row
from .peers.bare_messages import serving
from .relay import PORT, Relay, ports

if TYPE_CHECKING:
    from .page import Store

MEASURES = "pair", "handoff"
PAIRS = 50
"""In a batch; each takes some milliseconds."""
COLUMNS = {goals.PAIR: "acquire + release, threads", goals.APAIR: "asyncio", goals.HANDOFF: "hand-off"}


@contextlib.contextmanager
def away(peers: dict[str, tuple[str, str]], rtt: float) -> Iterator[dict[str, tuple[str, str]]]:
    """The same peers with a relay before each server, and beside them what the way alone takes."""
    with contextlib.ExitStack() as stack:
        messages = ("bare_messages", stack.enter_context(serving()))
        relays: dict[int, Relay] = {}
        found = {}
        for name, (module, target) in {**peers, goals.MESSAGES: messages}.items():
            if not ports(target):
                raise SystemExit(f"{name} cannot be sent through a relay")
            for server in set(ports(target)) - set(relays):
                relays[server] = stack.enter_context(Relay(server, target, rtt / 2))
            found[name] = module, PORT.sub(lambda port: f":{relays[int(port[1])].port}", target)
        yield found


def is_away(row: Row) -> bool:
    """Whether a line is of a run with a network in between: its place is in the table of those, not in its store's."""
    return row.what.endswith(" ms away")


def table(stores: Sequence[Store], where: str = goals.AWAY) -> str:
    """One for all stores, in round trips; empty if none was measured."""
    lines = []
    for store in stores:
        found = {row.what: row for row in store.rows}
        rows = [found.get(what + where) for what in COLUMNS]
        if not rows[0] or not (ping := milliseconds(rows[0], goals.MESSAGES) / 2):
            continue
        for peer in store.peers:
            times = [row and milliseconds(row, peer) for row in rows]
            if any(times):
                cells = [f"{time / ping:.2f} ({time:.3g} ms)" if time else "" for time in times]
                if peer == store.peers[0]:
                    cells = [f"**{cell}**" for cell in cells]
                lines.append(f"| {store.title if peer == store.peers[0] else ''} | {peer} | {' | '.join(cells)} |")
    head = [f"| store | | {' | '.join(COLUMNS.values())} |", "| --- | --- |" + " ---: |" * len(COLUMNS)]
    return "\n".join(head + lines) if lines else ""


def milliseconds(row: Row, peer: str) -> float:
    """0 where the peer has no figure."""
    return (row.values.get(peer) or 0.0) / (1e3 if row.unit == "µs" else 1)
