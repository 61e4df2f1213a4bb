"""The frozen record of one grant, what is owed to the store, and the reasons for which a lease ends."""

from __future__ import annotations

from typing import Any, NamedTuple

RELEASED = "released"
"""How a lease ends well. Any other end is a reason of loss."""
EXPIRED = "it expired: no renewal succeeded before its deadline"
TAKEN = "the store reports that this lease no longer holds the name"
BY_OPERATOR = "it was broken by an operator"
OFFERED = "it was handed over with transfer(): another process may hold it now"
HANDED_OVER = "it was handed over with transfer(), and another process has taken it over"
NOT_THERE = "it cannot be taken over: it was released, has expired, or was taken over before"
NOT_UPDATED = "group.update() did not finish, so the membership was given back"
CLOSED = "its Locks was closed while the lease was held"
DRAINED = "its Locks was drained, and the lease was still held when the grace period ended"
FORKED = "this process is a fork: the lease belongs to the parent process"
OVERHELD = "max_hold was reached, so renewal stopped"
SILENT = "no beat() came within beat_every, so renewal stopped"

RENEWALS_FAILED = "renewal failed in"
"""How the reason begins when ``max_renew_failures`` has ended a lease."""

_LOSS_WORDS = {
    EXPIRED: "expired",
    TAKEN: "taken",
    BY_OPERATOR: "broken",
    OFFERED: "handed_over",
    HANDED_OVER: "handed_over",
    CLOSED: "closed",
    DRAINED: "drained",
    FORKED: "forked",
    OVERHELD: "max_hold",
    SILENT: "no_beat",
}


def loss_word(reason: str | None) -> str:
    """The reason of a loss in one word, of a small set."""
    if reason is not None and reason.startswith(RENEWALS_FAILED):
        return "renewal_failed"
    return _LOSS_WORDS.get(reason or "", "other")


class Claim(NamedTuple):
    """The frozen record of one grant."""

    name: str
    attempt: str
    token: int
    hint: Any
    until: float
    """When the store forgets it by itself, on the local clock, if it is not renewed."""

    def owed(self) -> Unsettled:
        return Unsettled(self.name, self.attempt, self.until, self.token)


class Unsettled(NamedTuple):
    """What is to be given back in the background; after ``until`` the store has forgotten it by itself."""

    name: str
    attempt: str
    until: float
    token: int | None = None
    """Known when it was held: then it is released, with ``min_hold``; else the attempt is abandoned."""
