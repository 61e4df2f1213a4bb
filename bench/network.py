"""A server that is some way off: a relay between each client and its server, which delays what passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

from . import goals
from .figures import Row
from .peers.bare_messages import serving
from .relay import PORT, Relay, ports

if TYPE_CHECKING:
    from .page import Store

MEASURES = "pair", "handoff"
PAIRS = 20
"""In a batch; each takes some milliseconds."""
PUBLISHED = 0.001, 0.01
TEXT = """## With a network in between

On loopback a round trip takes next to nothing, and most of a figure is work. `--rtt 1ms` puts a relay between clients
and server, which holds back whatever passes for half a millisecond in each direction; what is sent in a row arrives in
a row. At 1 ms, as in a data centre, work still counts; at 10 ms, as between two of them, little but how often a store
has to be asked.

They are in round trips, with the milliseconds beside them. *Bare messages* is the floor: a server that knows nothing
but who is next, asked through the same relay in the same run. An acquire and release are two round trips there, and
half of that is what the table counts in: the 1 or 10 ms, and what loopback, the relay and the machine add. A hand-off
is one: half for the release to arrive and half for the message to the next holder, whose process has to be woken. What
a server has to do, a commit to the disk for example, comes on top.
"""
CLAIM = "The next holder claims the lease by"
ROUND_TRIPS = (
    (
        *("Redis", "2", "2"),
        f"The release brings the wake-up (1). {CLAIM} a script (1): anybody who can reach the server can publish, so a "
        "wake-up grants nothing.",
    ),
    (
        *("Redlock", "3", "–"),
        "An acquire asks all nodes for their votes (1), and tells a majority the highest token (1): without that there "
        "is no fencing. Nobody is woken: who waits asks again when the lease runs out, or after a while.",
    ),
    (
        *("MongoDB, standalone", "2", "2"),
        "A standalone server has no change streams: when the release is answered (1), the releaser inserts the message "
        "to the next holder (1), which grants the lease.",
    ),
    (
        *("PostgreSQL", "2", "4"),
        "The release is tried as if nobody waited (1), the row is read (1), swapped and its waiter notified by one "
        "statement (1); the next holder accepts (1).",
    ),
    (
        *("MariaDB, MySQL", "2", "7"),
        "As on PostgreSQL, but the swap (1) notifies nobody: `KILL QUERY` ends the listener's sleep (1); the listener "
        "releases its named lock (1) and reads who was granted the lease (1).",
    ),
    (
        *("etcd", "2, after a rest 3", "3"),
        "The release brings the event of the watch (1). The next holder renews the etcd lease of its key, unless that "
        "was done within a hundredth of its length (1), and claims the name by a transaction (1). An acquire after "
        "such a rest renews it first, too.",
    ),
    (
        *("ZooKeeper", "2", "2"),
        f"The release brings the event of the watch (1). {CLAIM} writing its node (1), and its deadline counts from "
        "then.",
    ),
)
"""By store, how many an acquire and release, and a hand-off, have by design, and what they are."""
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


def table(stores: Sequence[Store], distances: Sequence[float] = PUBLISHED) -> str:
    """One for all stores, in round trips; empty if none was measured."""
    lines = []
    for store in stores:
        found = {row.what: row for row in store.rows}
        cells: dict[str, list[str]] = {peer: [] for peer in store.peers}
        for rtt in distances:
            rows = [found.get(what + goals.away(rtt)) for what in COLUMNS]
            ping = milliseconds(rows[0], goals.MESSAGES) / 2
            for peer, row in product(store.peers, rows):
                time = milliseconds(row, peer)
                cells[peer].append(f"{time / ping:.2f} ({time:.3g} ms)" if ping and time else "")
        title, ours = store.title, store.peers[0]
        for peer, each in cells.items():
            if any(each):
                said = [cell and f"**{cell}**" for cell in each] if peer == ours else each
                lines.append(f"| {title if peer == ours else ''} | {peer} | {' | '.join(said)} |")
    titles = [f"{rtt * 1e3:g} ms: {title}" for rtt, title in product(distances, COLUMNS.values())]
    head = [f"| | | {' | '.join(titles)} |", "| --- | --- |" + " ---: |" * len(titles)]
    return "\n".join(head + lines) if lines else ""


def section(stores: Sequence[Store]) -> str:
    found = table(stores)
    why = ["| | acquire + release | hand-off | which |", "| --- | ---: | ---: | --- |"]
    why += [f"| {' | '.join(line)} |" for line in ROUND_TRIPS]
    return "\n".join([TEXT, found, "", "So many round trips they have by design:", "", *why]) if found else ""


def milliseconds(row: Row | None, peer: str) -> float:
    """0 where the peer has no figure."""
    return ((row and row.values.get(peer)) or 0.0) / (1e3 if row and row.unit == "µs" else 1)
