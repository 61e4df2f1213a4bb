"""What stands in the key of a holder or a waiter: a JSON list that starts with the version of the format."""

from __future__ import annotations

import json
from typing import NamedTuple

from ... import clock
from ...errors import StoreNotReady
from ...protocol import SECOND, Ask, Holding
from .wire import KeyValue

VERSION = 1
HELD = 0
INTERRUPTED = 1  # by break_lease: renewal is refused
RESTING = 2  # given back before min_hold was over: nobody's until its lease runs out

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


class Permit(NamedTuple):
    """One attempt's share of a name, waiting or held. ``began`` is a wall-clock time, for people to read."""

    state: int
    owner: str
    kind: str
    data: str | None
    shape: str
    limit: int
    weight: int
    rest: int
    began: int
    session: str
    # What the key itself tells.
    name: str = ""
    attempt: str = ""
    key: bytes = b""
    create: int = 0
    mod: int = 0
    lease: int = 0

    @classmethod
    def taken(cls, ask: Ask, session: bytes) -> Permit:
        now = clock.wall_us()
        what = (ask.shape, ask.limit, ask.weight, ask.rest)
        return cls(HELD, ask.owner, ask.kind, ask.data, *what, now, session.decode())

    def dump(self) -> bytes:
        return _encode((VERSION, *self[:10])).encode()

    def interrupted(self) -> Permit:
        return self._replace(state=INTERRUPTED)

    def resting(self) -> Permit:
        return self._replace(state=RESTING, rest=0)

    def left_of_rest(self) -> int:
        """What is left of its min_hold, by the wall clock: there is no other that two processes share."""
        return max(0, self.rest - max(0, clock.wall_us() - self.began))

    def seen(self, epoch: int, left: float, waiters: int) -> Holding:
        attempt = "" if self.state == RESTING else self.attempt
        age = max(0.0, (clock.wall_us() - self.began) / SECOND)
        return Holding(self.name, attempt, self.owner, self.kind, self.data, self.create + epoch, age, left, waiters)


def read_permit(key: KeyValue) -> Permit:
    name, _, attempt = key.key.split(b"/", 3)[3].rpartition(b"\0")
    try:
        version, *fields = json.loads(key.value)
        if version != VERSION or len(fields) != 10:
            raise ValueError(version)
    except ValueError as error:
        raise StoreNotReady(
            f"{key.key!r} was written by a newer leasehold, or by something else: upgrade this one, or remove the key"
        ) from error
    permit = Permit(*fields)
    return permit._replace(
        name=name.decode(), attempt=attempt.decode(), key=key.key, create=key.create, mod=key.mod, lease=key.lease
    )
