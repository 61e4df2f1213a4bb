"""A counter that many processes raise under a lease, the resource that guards it, and the check of their history.

The resource is a file that accepts a write only with a token that is not lower than the highest it has seen; its own
short ``flock`` makes that atomic. Everybody logs what they did; :func:`check_history` judges it.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .handles import Locks


class Fenced:
    """``{"value", "token", "log"}`` in a file. ``write`` returns False when the token is too old."""

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
    """Raise the counter ``rounds`` times. Returns the history: who, token, when asked, when had, whether written."""
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
        history.append({**entry, "written": written})
        lease.release()
    return history


def check_history(history: Sequence[dict[str, Any]], resource: dict[str, Any]) -> None:
    """PROOF's checker: 1 a token has one owner, 2 order in time is order of tokens, 3 the resource never goes back,
    4 the value is the number of accepted writes."""
    owners: dict[int, str] = {}
    for each in history:
        assert each["token"] not in owners, "a token was given twice"
        owners[each["token"]] = each["owner"]
    grants = sorted(history, key=lambda each: each["invoked"])
    by_return = sorted(history, key=lambda each: each["returned"])
    highest, earlier = 0, iter(by_return)
    following = next(earlier, None)
    for each in grants:
        while following is not None and following["returned"] < each["invoked"]:
            highest = max(highest, following["token"])
            following = next(earlier, None)
        assert each["token"] > highest, "a grant that was asked for after another has a lower token"
    tokens = [token for token, _ in resource["log"]]
    assert tokens == sorted(tokens)
    assert all(owners[token] == owner for token, owner in resource["log"])
    assert resource["value"] == len(resource["log"]) == sum(each["written"] for each in history)
