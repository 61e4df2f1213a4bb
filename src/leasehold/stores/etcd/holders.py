"""What we know of our own holders: their terms, those that are being asked for, and their moves between leases.

Bookkeeping without I/O. A holder and the keeper may renew the same lease at once, see docs/design/08-etcd.md.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

from ...core import clock
from ...core.protocol import SECOND


class Held(NamedTuple):
    """What we know of a holder of ours; ``until`` is when its term is over, unless it is renewed, and ``promised`` when
    the last of the terms is over that it was granted: its lease may end no sooner."""

    name: str
    attempt: str
    token: int
    lease: int
    shared: bool
    rest: int
    since: float
    until: float
    promised: float
    granted: float = 0.0
    """When that was answered: not before the grant, from which ``min_hold`` counts."""


class Holders:
    """Those of one ``Locks``."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self._promising: list[Mapping[str, float]] = []
        """Of each renewal that is under way: the ends of the terms that it asks for, by attempt."""
        self._moving: dict[str, list[int]] = {}
        """By attempt: moves to another lease that may yet arrive, each with the revision that its key has to have."""
        self._offered: set[str] = set()
        """Attempts that another may take over: their own leases are not given up when we end."""
        self._mutex = threading.RLock()

    def holds(self, held: Held) -> None:
        self.held[held.attempt] = held

    def promise(self, terms: Mapping[str, float]) -> None:
        """Terms are about to be asked for: by attempt, their ends. The holder and the keeper may do so at once."""
        self._promising.append(terms)

    def withdraw(self, terms: Mapping[str, float]) -> None:
        """Those were granted and noted, or nobody was told so. Takes no lock: a destructor may come here."""
        self._promising.remove(terms)

    def granted(self, attempt: str) -> float:
        """When the last of the terms is over that a holder was granted."""
        held = self.held.get(attempt)
        return 0.0 if held is None else held.promised

    def promised(self, attempt: str) -> float:
        """The same, and of those that are only being asked for. Nothing is granted on the strength of these, which may
        fail; but no move takes the holder to a lease that ends before."""
        asked = [terms.get(attempt, 0.0) for terms in tuple(self._promising)]
        return max((self.granted(attempt), *asked))

    def renewed(self, attempt: str, sent: float, ttl: int, lease: int | None = None) -> None:
        """A term that was asked for at ``sent`` was granted, on a ``lease`` of its own if one is named."""
        with self._mutex:
            held = self.held.get(attempt)
            if held is not None:
                if lease is not None:
                    held = held._replace(lease=lease, shared=False)
                until, promised = clock.now() + ttl / SECOND, sent + ttl / SECOND
                self.held[attempt] = held._replace(until=max(held.until, until), promised=max(held.promised, promised))

    def find(self, name: str, attempt: str, token: int) -> Held | None:
        held = self.held.get(attempt)
        return held if held is not None and (held.name, held.token) == (name, token) else None

    def forget(self, attempt: str) -> None:
        self.held.pop(attempt, None)
        self._moving.pop(attempt, None)
        self._offered.discard(attempt)

    def offers(self, attempt: str) -> None:
        """It is to be there for whoever takes it over, for as long as its term lasts, though we end before."""
        self._offered.add(attempt)

    # Moves, from one lease to another. Once the key is written anew, none that was asked for before comes to anything:
    # so whoever renews a holder that may yet be moved writes it, too.

    def may_move(self, attempt: str) -> bool:
        return attempt in self._moving

    def moves(self, attempt: str, revision: int) -> None:
        with self._mutex:
            self._moving.setdefault(attempt, []).append(revision)

    def refused(self, attempt: str, revision: int) -> None:
        """A move was not carried out, and will not be."""
        with self._mutex:
            if revision in self._moving.get(attempt, ()):
                self._moving[attempt].remove(revision)  # one: another may have asked for the same
            self._keep_moving(attempt, 0)

    def answered(self, attempt: str, revision: int) -> None:
        """The key had this revision or, as it turned out, a later one; now it has a later one in any case."""
        with self._mutex:
            self._keep_moving(attempt, revision)

    def _keep_moving(self, attempt: str, beyond: int) -> None:
        if left := [each for each in self._moving.get(attempt, ()) if each > beyond]:
            self._moving[attempt] = left
        else:
            self._moving.pop(attempt, None)

    def overdue(self) -> list[Held]:
        """Holders whose term is over, while the lease that they share may be renewed for others."""
        now = clock.now()
        return [held for held in list(self.held.values()) if held.shared and held.until < now]

    def tidy(self) -> None:
        now = clock.now()
        for held in list(self.held.values()):
            if held.until < now - 3600:
                self.forget(held.attempt)
        for attempt in list(self._moving):
            if attempt not in self.held:
                self._moving.pop(attempt, None)
