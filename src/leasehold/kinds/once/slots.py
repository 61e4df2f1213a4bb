"""Slots of time, for ``once(per=…)``: which slot it is now, and whether a caller's clock may be believed.

A slot is named by its start in UTC. Slots of a period begin at its multiples since 1970-01-01T00:00Z, so hours and days
begin where UTC's do, in every time zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ...core import clock, timing
from ...core.protocol import SECOND

WORDS: Mapping[str, int] = {"minute": 60, "hour": 3600, "day": 86_400}
MOST_REFUSED = 8
"""How many machines with refused proposals are recorded."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def period(per: object) -> int:
    """``per`` in seconds. Raises ValueError or TypeError."""
    if isinstance(per, str) and per in WORDS:
        return WORDS[per]
    try:
        seconds = timing.seconds(per, "per")
    except (ValueError, TypeError) as error:
        raise type(error)(f'{error}; use "minute", "hour", "day" or a duration') from None
    if seconds != int(seconds):
        raise ValueError(f"per must be a whole number of seconds, not {seconds:g}")
    return int(seconds)


def start(now: int, per: int) -> int:
    """The start of the slot, in seconds, at ``now`` in µs."""
    return now // (per * SECOND) * per


def version(start: int) -> str:
    """The slot's name."""
    return datetime.fromtimestamp(start, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def start_of(version: str) -> int:
    """The start of the slot of this name. Raises ValueError."""
    start = int(datetime.strptime(version, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())
    if start < 0:
        raise ValueError(version)
    return start


class Machine(NamedTuple):
    """A machine since its last boot, and by how much its wall clock is ahead of its clock since boot. The second cannot
    be set."""

    boot: str
    """The boot id; empty where the system has none."""
    offset: int
    """µs."""


def this_machine() -> Machine:
    boot = ""
    try:
        with open(_BOOT_ID) as file:
            boot = file.read().strip()
    except OSError:
        pass
    return Machine(boot[:128], clock.wall_us() - clock.now_us())


class SlotRecord(NamedTuple):
    """What is recorded of slots, beside their outcomes."""

    last: int | None = None
    """The start of the newest slot that has an outcome. Older slots are not run."""
    machine: Machine | None = None
    """The machine that recorded it."""
    ahead: Mapping[str, int] = {}
    """Proposals that were refused since: the first slot of each machine, by its boot id."""
    accepted: int | None = None
    """A slot that was refused, and then forgotten: it may run."""
    outcomes: Mapping[str, Any] = {}
    """By the slot's name, the oldest first."""

    def without(self, version: str) -> SlotRecord:
        """The record after ``forget``. A slot that has an outcome may run again; one that was refused may run."""
        if version in self.outcomes:
            left = {key: each for key, each in self.outcomes.items() if key != version}
            last = max((start_of(key) for key in left), default=None)
            return self._replace(last=last, ahead={}, accepted=None, outcomes=left)
        try:
            start = start_of(version)
        except ValueError:
            return self
        if self.last is None or start <= self.last or not self.ahead:
            return self
        return self._replace(accepted=start)


def is_believed(found: SlotRecord, proposed: int, per: int, drift: float, here: Machine) -> bool:
    """Whether a slot that a caller proposes by its own wall clock may run, on a store without a clock.

    The successor of the last slot may, and that of an accepted one. A later one may

    - if the caller's clock is the one that the last slot was recorded by, and was not set since;
    - if another machine has proposed the same;
    - if this machine was refused, and nobody has recorded a slot since, for a whole slot. (In less time, the others may
      just not have come yet.)"""
    last, there = found.last, found.machine
    if last is None or proposed <= max(last, found.accepted or 0) + per + drift:
        return True
    if there is not None and there.boot == here.boot != "" and abs(here.offset - there.offset) <= per * SECOND:
        return True
    return any(
        start + per < proposed if boot == here.boot else start <= proposed <= start + per
        for boot, start in found.ahead.items()
    )


def refused(found: SlotRecord, proposed: int, here: Machine) -> SlotRecord:
    """The record after a refusal."""
    others = {boot: start for boot, start in found.ahead.items() if boot != here.boot}
    newest = dict(list(others.items())[-(MOST_REFUSED - 1) :])
    return found._replace(ahead={**newest, here.boot: min(proposed, found.ahead.get(here.boot, proposed))})
