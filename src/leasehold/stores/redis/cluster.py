"""What a cluster's answers mean: which node has which slot. Pure; ``cluster_threads`` and ``cluster_tasks`` ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis.crc import key_slot
from redis.exceptions import AskError, MovedError

from .scripts import Call

SLOTS = (b"CLUSTER", b"SLOTS")
HOPS = 5
"""How often a call is sent on before it counts as failed."""

Node = tuple[str, int]


class SlotMap:
    """Who serves a slot, as far as we know; the nodes of the URL until we have asked."""

    def __init__(self, start: Iterable[Node]) -> None:
        self.start = list(start)
        self._ranges: list[tuple[int, int, Node]] = []

    def learn(self, reply: Sequence[Any], asked: Node) -> None:
        """Take in the answer to CLUSTER SLOTS. A node that does not know its own address leaves the host out."""
        self._ranges = [(first, last, (_text(main[0]) or asked[0], int(main[1]))) for first, last, main, *_ in reply]

    def forget(self) -> None:
        self._ranges = []

    @property
    def known(self) -> bool:
        return bool(self._ranges)

    @property
    def nodes(self) -> list[Node]:
        """The masters that we know; to ask for the map, the URL's nodes too."""
        return list(dict.fromkeys(node for _, _, node in self._ranges))

    def find(self, call: Call) -> Node | None:
        slot = int(key_slot(call.keys[0]))
        for first, last, node in self._ranges:
            if first <= slot <= last:
                return node
        return None


def redirected(error: object) -> Node | None:
    """Where an error reply sends us."""
    if isinstance(error, (MovedError, AskError)):
        return (error.host, int(error.port))
    return None


def _text(host: bytes | str | None) -> str:
    return "" if host is None else host if isinstance(host, str) else host.decode()
