"""A counter that many processes increment under a lease, the resource that guards it, and the check of their history.

The resource is a file that accepts a write only with a token that is not lower than the greatest it has seen; a short
``flock`` makes that atomic. Each process logs its steps; :func:`check_history` judges them.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .handles import Locks
from .history import Record, Resource, assert_clean


class Fenced:
    """``{"value", "token", "log"}`` in a file. ``write`` returns False if the token is too old."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def create(self) -> None:
        self.path.write_text(json.dumps({"value": 0, "token": 0, "log": []}))

    def read(self) -> dict[str, Any]:
        with self.path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            found: dict[str, Any] = json.load(file)
            return found

    def write(self, value: int, token: int, owner: str) -> bool:
        with self.path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            state = json.load(file)
            if token < state["token"]:
                return False
            state.update(value=value, token=token, log=[*state["log"], (token, owner)])
            file.seek(0)
            file.truncate()
            json.dump(state, file)
            return True


def count(locks: Locks, name: str, path: str, rounds: int, ttl: float) -> list[dict[str, Any]]:
    """Increment the counter ``rounds`` times. Returns the history: owner, token, times, and whether it was written.

    ``ran_out``: the process was paused for longer than its term, which explains a refused write."""
    lock = locks.lock(name, ttl=ttl)
    resource = Fenced(path)
    history = []
    for _ in range(rounds):
        invoked = time.monotonic()
        lease = lock.acquire()
        returned = time.monotonic()
        value = resource.read()["value"]
        written = lease.valid and resource.write(value + 1, lease.token, lease.owner)
        entry = {"owner": lease.owner, "token": lease.token, "invoked": invoked, "returned": returned}
        history.append({**entry, "written": written, "ran_out": lease.ran_out()})
        lease.release()
    return history


def check_history(history: Sequence[dict[str, Any]], resource: dict[str, Any]) -> None:
    """The judge of :mod:`leasehold.testing.history`, for what ``count`` returns."""
    records = []
    for each in history:
        held = {"name": "counter", "owner": each["owner"], "token": each["token"], "invoked": each["invoked"]}
        records.append(Record("acquire", **held, returned=each["returned"], outcome="granted"))
        if each["written"]:
            records.append(Record("write", **held, returned=each["returned"], outcome="accepted"))
    assert_clean(records, {"counter": Resource(resource["value"], resource["log"])})
