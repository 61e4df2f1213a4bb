"""What stands in the key of a holder or a waiter: a JSON list that starts with the version of the format."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from ...core import checks, clock
from ...core.protocol import SECOND, Ask, Holding
from ...errors import StoreNotReady
from ..common import forms
from .wire import KeyValue

VERSION = 1
HELD = 0
INTERRUPTED = 1  # by break_lease: renewal is refused
RESTING = 2  # given back before min_hold was over: nobody's until its lease runs out

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


class StoredPermit(NamedTuple):
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
    def taken(cls, ask: Ask, session: str) -> StoredPermit:
        now = clock.wall_us()
        what = (ask.shape, ask.limit, ask.weight, ask.rest)
        return cls(HELD, ask.owner, ask.kind, ask.data, *what, now, session)

    def dump(self) -> bytes:
        return _encode((VERSION, *self[:10])).encode()

    def interrupted(self) -> StoredPermit:
        return self._replace(state=INTERRUPTED)

    def resting(self) -> StoredPermit:
        return self._replace(state=RESTING, rest=0)

    def left_of_rest(self) -> int:
        """What is left of its min_hold, by the wall clock: there is no other that two processes share."""
        return max(0, self.rest - max(0, clock.wall_us() - self.began))

    def seen(self, epoch: int, left: float, waiters: int) -> Holding:
        attempt = "" if self.state == RESTING else self.attempt
        age = max(0.0, (clock.wall_us() - self.began) / SECOND)
        return Holding(self.name, attempt, self.owner, self.kind, self.data, self.create + epoch, age, left, waiters)


_KEY = re.compile(rb"[hw]/([^\0]+)\0~?(?:[0-9a-f]{16})?([0-9a-f]{32})", re.DOTALL)
_SESSION = re.compile("[0-9a-f]{16}")


def read_permit(key: KeyValue) -> StoredPermit:
    """Anybody may have written it: nothing of it is used before its form was checked."""
    try:
        return _read(key)
    except _Newer:
        raise StoreNotReady(f"{key.key!r} was written by a newer leasehold: upgrade leasehold") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreNotReady(
            f"{key.key!r} is not a record of leasehold ({str(error)[:100]}): remove the key; for a holder, call "
            "break_lease(name, force=True)"
        ) from error


class _Newer(Exception):
    pass


def _read(key: KeyValue) -> StoredPermit:
    parts = _KEY.fullmatch(key.key.split(b"/", 2)[2])
    if parts is None:
        raise ValueError("malformed key")
    name, tail = checks.name(parts[1].decode()), key.key.rpartition(b"\0")[2].decode()
    version, *fields = json.loads(key.value)
    if type(version) is int and version > VERSION:
        raise _Newer
    if type(version) is not int or version != VERSION or len(fields) != 10:
        raise ValueError("malformed value")
    permit = StoredPermit(*fields)._replace(
        name=name, attempt=tail, key=key.key, create=key.create, mod=key.mod, lease=key.lease
    )
    checks.text(permit.owner, "its owner", checks.MAX_OWNER)
    checks.text(permit.kind, "its kind", checks.MAX_LABEL)
    checks.text(permit.shape, "its shape", checks.MAX_LABEL)
    if not forms.is_data(permit.data):
        raise ValueError("its data is not JSON")
    if not _SESSION.fullmatch(permit.session):
        raise ValueError("malformed session")
    forms.number(permit.state, "its state", HELD, RESTING)
    forms.number(permit.limit, "its limit", 1, checks.MAX_PERMITS)
    forms.number(permit.weight, "its weight", 1, permit.limit)
    forms.number(permit.rest, "its min_hold", 0, forms.LONGEST)
    forms.number(permit.began, "its time", 0, forms.LATEST)
    return permit
