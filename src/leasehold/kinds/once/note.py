"""What is recorded of one name: the form of its note.

The note is JSON: ``format``, and ``outcomes``, which has a row for each version, the one recorded last at the end.

- The newest rows have all details: status, owner, token, start, duration, error, attempts, result.
- A *mark* is a row without details: status and attempts. Marks are never dropped. When there are many, they move to
  further notes (:mod:`.archive`).
- ``shards``, hexadecimal: a bit for each further note that there may be.
- ``slots``: what is recorded of slots of time. It needs no marks: slots older than the last one are never run.

A note without ``shards`` and ``slots`` has format 1, which earlier versions of leasehold read and write. With
them it has format 2.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from heapq import merge
from typing import Any, NamedTuple

from ...core import checks
from ...core.log import WARNING, log
from ...errors import StoreNotReady
from ...stores.common import forms
from . import slots
from .outcome import DONE, FAILED, Outcome, bare
from .slots import Machine, SlotRecord

FORMAT = 2
LONGEST_NOTE = 60_000
"""In bytes. A store takes 64 KiB."""
LONGEST_RESULT = 16_000
LONGEST_ERROR = 2_000
SHARDS = 256
"""How many further notes a name has, at most."""
MARK = 14
"""The size of a mark in a note, without its version in quotes."""


class DamagedNote(StoreNotReady):
    """The note is not one that leasehold writes."""


class Note(NamedTuple):
    """What is recorded of one name."""

    versions: Mapping[str, Outcome[Any]] = {}
    """By version, the one recorded last at the end."""
    shards: int = 0
    """A bit for each further note that there may be."""
    slots: SlotRecord | None = None

    def history(self) -> list[Outcome[Any]]:
        """The outcomes that have details, the one recorded last at the end."""
        of_slots = () if self.slots is None else self.slots.outcomes.values()
        return list(merge(_detailed(self.versions.values()), _detailed(of_slots), key=_finished))

    def marks(self) -> list[Outcome[Any]]:
        """The outcomes without details."""
        return [each for each in self.versions.values() if each.started is None]

    def trimmed(self, keep: int) -> Note:
        """With details of the last ``keep`` versions, and of the last ``keep`` slots, and the status of the slot before
        these, which is the last one when they are forgotten."""
        old = {each.version for each in _detailed(self.versions.values())[:-keep]}
        versions = {key: mark_of(each) if key in old else each for key, each in self.versions.items()}
        if self.slots is None:
            return self._replace(versions=versions)
        newest = dict(list(self.slots.outcomes.items())[-keep - 1 :])
        for key in list(newest)[:-keep]:
            newest[key] = mark_of(newest[key])
        return self._replace(versions=versions, slots=self.slots._replace(outcomes=newest))


def mark_of(outcome: Outcome[Any]) -> Outcome[Any]:
    return bare(outcome.name, outcome.version, outcome.status, outcome.attempts)


def _detailed(outcomes: Iterable[Outcome[Any]]) -> list[Outcome[Any]]:
    return [each for each in outcomes if each.started is not None]


def _finished(outcome: Outcome[Any]) -> datetime:
    assert outcome.finished is not None
    return outcome.finished


# Reading.


def load(name: str, text: str | None) -> Note:
    """Raises StoreNotReady if a newer leasehold wrote the note, or it is damaged."""
    if text is None:
        return Note()
    try:
        stored = json.loads(text)
        check_format(name, stored)
        shards = int(stored.get("shards", "0"), 16)
        if not 0 <= shards < 1 << SHARDS:
            raise ValueError(shards)
        found = stored.get("slots")
        return Note(read_rows(name, stored["outcomes"]), shards, None if found is None else _read_slots(name, found))
    except UNREADABLE as error:
        raise DamagedNote(
            f"the outcomes of {name!r} are damaged ({type(error).__name__}): remove them with "
            f"once({name!r}).forget(every_version=True)"
        ) from error


UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What comes of reading something that leasehold did not write."""


def check_format(name: str, stored: Any) -> None:
    if forms.number(stored["format"], "format", 1, forms.MOST) > FORMAT:
        raise StoreNotReady(f"the outcomes of {name!r} were recorded by a newer leasehold: upgrade this one")


def read_rows(name: str, rows: Mapping[str, Any]) -> dict[str, Outcome[Any]]:
    found = {}
    for version, row in rows.items():
        if not (0 < len(version) <= checks.MAX_LABEL and version.isprintable()):  # the usual case is checked fast
            forms.text(version, "version", checks.MAX_LABEL)
        found[version] = _outcome(name, version, *row)
    return found


def _read_slots(name: str, stored: Any) -> SlotRecord:
    outcomes = read_rows(name, stored["outcomes"])
    for version in outcomes:
        slots.start_of(version)
    last, machine, ahead, accepted = stored["last"], stored["machine"], stored["ahead"], stored["accepted"]
    for each in (last, accepted):
        if each is not None:
            forms.number(each, "slot", 0, forms.LATEST // 1_000_000)
    if machine is not None:
        boot, offset = machine
        forms.text(boot, "boot", 128, 0)
        machine = Machine(boot, forms.number(offset, "offset", -forms.LATEST, forms.LATEST))
    for boot, start in ahead.items():
        forms.text(boot, "boot", 128, 0)
        forms.number(start, "ahead", 0, forms.LATEST // 1_000_000)
    return SlotRecord(last, machine, ahead, accepted, outcomes)


def _outcome(name: str, version: str, status: str, *rest: Any) -> Outcome[Any]:
    """The outcome in a row of a note. Raises ValueError or TypeError if ``dump`` cannot have made the row."""
    if status not in (DONE, FAILED):
        raise ValueError(status)
    if len(rest) == 1:
        return bare(name, version, status, forms.number(rest[0], "attempts", 0, forms.MOST))
    owner, token, started, duration, error, attempts, result = rest
    forms.text(owner, "owner", checks.MAX_OWNER)
    forms.number(token, "token", 0, forms.MOST)
    forms.number(attempts, "attempts", 0, forms.MOST)
    if error is not None:
        forms.text(error, "error", LONGEST_ERROR, 0, printable=False)
    begun = datetime.fromisoformat(started)
    if begun.tzinfo is None:
        raise ValueError(started)
    times = (begun, begun + timedelta(seconds=duration), duration)
    return Outcome(name, version, status, owner, token, *times, error, attempts, result, False)


# Writing.


def row_of(outcome: Outcome[Any]) -> list[Any]:
    if outcome.started is None:
        return [outcome.status, outcome.attempts]
    who = (outcome.status, outcome.owner, outcome.token, outcome.started.isoformat(), outcome.duration)
    return [*who, outcome.error, outcome.attempts, recordable(outcome.result)]


def dump(name: str, note: Note) -> str | None:
    """The note as text; None if nothing is recorded.

    If it is too long, the oldest outcomes lose first their results, then their errors, then all details. A mark is
    never dropped."""
    rows = {version: row_of(each) for version, each in note.versions.items()}
    of_slots = {} if note.slots is None else {key: row_of(each) for key, each in note.slots.outcomes.items()}
    if not rows and not note.shards and (note.slots is None or not (of_slots or note.slots.ahead)):
        return None
    stored: dict[str, Any] = {"format": 1, "outcomes": rows}
    if note.shards or note.slots is not None:
        stored.update(format=FORMAT, shards=f"{note.shards:x}")
    if note.slots is not None:
        stored["slots"] = {**note.slots._asdict(), "outcomes": of_slots}
    over = len(encode(stored)) - LONGEST_NOTE
    if over > 0:
        shortened = _shorten(note, rows, of_slots, over)
        if shortened:
            text = "the record of %r is full: the results and errors of the %d oldest versions are dropped"
            log(WARNING, text, name, shortened, event="shortened")
    return encode(stored)


def _shorten(note: Note, rows: dict[str, Any], of_slots: dict[str, Any], over: int) -> int:
    """Shorten rows, the oldest first, until ``over`` bytes are saved. Returns how many rows were shortened."""
    slotted = set() if note.slots is None else {id(each) for each in note.slots.outcomes.values()}
    oldest = [(of_slots if id(each) in slotted else rows, each.version) for each in note.history()]
    old, newest = oldest[:-1], oldest[-1:]
    shortened = set()
    for part, (found, version) in [
        *((RESULT, each) for each in old),
        *((ERROR, each) for each in old),
        *((DETAILS, each) for each in old),
        *((RESULT, each) for each in newest),
        *((ERROR, each) for each in newest),
    ]:
        row = found[version]
        short = [row[0], row[6]] if part == DETAILS else [*row[:part], None, *row[part + 1 :]]
        if over > 0 and short != row:
            over -= len(encode(row)) - len(encode(short))
            found[version] = short
            shortened.add(version)
    return len(shortened)


ERROR, RESULT, DETAILS = 5, 7, -1
"""The place in a row of what ``_shorten`` drops."""


def encode(what: Any) -> str:
    return json.dumps(what, separators=(",", ":"))


def recordable(result: Any) -> Any:
    """The result if it is JSON and short enough to be recorded, else None."""
    if result is None:
        return None
    try:
        text = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return result if len(text) <= LONGEST_RESULT else None
