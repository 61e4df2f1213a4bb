"""Whether to stay awake while a server answers.

Who waits for a socket falls asleep, and to be woken takes longer than a server on the same machine takes to answer: on
a virtual machine, twice as long. So a caller first looks again, for as long as such an answer may take. Only where that
has paid lately: over a network an answer takes longer than anybody should stay awake for, and where many want the
cores, who stays awake takes them from others.
"""

from __future__ import annotations

import types
from collections.abc import Generator

AWAKE = 60e-6
"""For how long, in seconds. A script's answer takes about 40 µs, a part of which is to wake the server."""
MOST, IN_VAIN = 8, 2
"""What is remembered of how it went: once in vain weighs as much as twice that it paid."""
PROBE = 100
"""When it does not pay, each so-many-th call tries again: the server may be less busy, or nearer, by then."""


class Linger:
    """How it went with the calls on one connection."""

    __slots__ = ("_asleep", "_paid")

    def __init__(self) -> None:
        self._paid = MOST
        self._asleep = 0

    def worth_it(self) -> bool:
        """Whether this call is to stay awake."""
        if self._paid:
            return True
        self._asleep += 1
        return self._asleep % PROBE == 0

    def went(self, answered: bool) -> None:
        """Whether the answer came while one did."""
        if not answered:
            self._paid = max(0, self._paid - IN_VAIN)
        elif self._paid < MOST:
            self._paid += 1


@types.coroutine
def a_turn() -> Generator[None, None, None]:
    """Let the event loop look at its sockets and run what is ready, once."""
    yield
