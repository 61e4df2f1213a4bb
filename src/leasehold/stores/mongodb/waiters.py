"""The waiters of one ``Locks``: what its store and its driver both need to know of them."""

from __future__ import annotations


class WaitingAttempt:
    __slots__ = ("alone", "asked", "called")

    def __init__(self, alone: bool, asked: float) -> None:
        self.alone = alone
        """Whether one attempt at a time holds the name."""
        self.asked = asked
        """The local time at which the last command about it was sent that was answered."""
        self.called = False


WaitingAttempts = dict[str, WaitingAttempt]
