"""What an operation of the store yields to its driver, what it is sent back, and how a driver fails.

An operation is one generator (``Steps``), from the rules of the queue down to the statement that is sent. It yields a
Turn first, then Statements and Pauses. The driver throws Refused or Broken into it where a statement failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

RENEW, GIVE, ASK = 0, 1, 2
"""How urgent: what keeps leases; what claims and releases them; whatever asks for more, or only wants to know."""


class Turn(NamedTuple):
    """Wait for a connection. Answered with the local time by which the operation has to end; asked again, at once.

    ``names``: what it is about. Under asyncio it waits for earlier, cancelled operations about the same names."""

    urgency: int = ASK
    names: Sequence[str] = ()


class Statement(NamedTuple):
    """Answered with a Result. ``sql`` has ``%(name)s`` placeholders and no other percent signs."""

    sql: str
    values: Mapping[str, Any]


class Hint(Statement):
    """A statement whose result does not matter: after so many seconds its answer is no longer waited for."""

    within = 0.2


class Pause(NamedTuple):
    """Wait a moment."""

    seconds: float


class Result(NamedTuple):
    """What a statement gave: its rows, how many it touched, and LAST_INSERT_ID where there is such a thing."""

    rows: Sequence[Sequence[Any]]
    touched: int
    last_id: int = 0


class Refused(Exception):
    """The server has answered a statement with an error; the connection is as good as before."""

    def __init__(self, code: Any, message: str) -> None:
        super().__init__(message)
        self.code = code


class Broken(Exception):
    """The connection is lost, or its answer did not come in time: the outcome is unknown."""


class Full(Broken):
    """The server refuses another connection, because it has too many, in all or of this user."""


class NoPush(Broken):
    """The connection works, but no wake-up arrives on it: a pooler or a cluster is in between."""


class Unsent(Exception):
    """Thrown into an operation that got no connection: nothing was sent."""


class Finished(Exception):
    """The operation is done, but its connection broke when a wake-up was sent on it."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result
