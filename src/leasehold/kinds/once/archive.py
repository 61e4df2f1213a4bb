"""Marks of old versions, in further notes of their own.

A name has up to 256 further notes, its *shards*. A hash of the version decides which of them has the version's mark. A
shard is the note of a name of its own: ``once:`` with a hash of the name, and the shard's number. It is written under a
lease of that name. Marks move in this order, under the lease of the name and then the shard's::

    write the name's note: there may be such a shard      refused if the name's lease was lost: nothing moves
    write the shard: its marks and the new ones           refused if the shard's lease was lost: nothing has moved
    write the name's note, without these marks            refused: they are in both, which does no harm

So a mark is in the name's note until it is in the shard. ``forget`` takes the same two leases: a holder that was paused
in the middle of a move cannot bring a mark back.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from ...core import timing
from ...core.effects import Effects, Run
from ...core.lease import BaseLease
from ...core.log import WARNING, log
from ...core.options import Spec
from ...core.registry import Registry
from .note import LONGEST_NOTE, MARK, SHARDS, UNREADABLE, DamagedNote, Note, check_format, encode, read_rows, row_of
from .outcome import Outcome
from .writing import patiently, read, while_held, write, write_text

MOST_MARKS = 8_000
"""The size of the marks in a name's note from which on they move."""
LARGEST_NOTE = LONGEST_NOTE - 3_000
"""The size of the marks in a name's note from which on no new version is run: its outcome might find no room."""


def shard_of(version: str) -> int:
    return blake2b(version.encode(), digest_size=1).digest()[0]


def shard_name(name: str, number: int) -> str:
    return f"once:{blake2b(name.encode(), digest_size=16).hexdigest()}:{number:02x}"


def spec_of(spec: Spec, number: int) -> Spec:
    """The spec of a shard's lease. Its loss ends nothing: its note is not written then."""
    return spec._replace(name=shard_name(spec.name, number), data=None, data_text=None, on_lost=None)


def size(note: Note) -> int:
    """The approximate size of the marks in the note."""
    return sum(len(encode(each.version)) + MARK for each in note.marks())


def due(note: Note, token: int) -> int | None:
    """The shard to which marks are to move, if it is time for that: one of the four that get the most.

    One that cannot be written (it is held, full or damaged) does not keep the others from moving: the token chooses."""
    if size(note) <= MOST_MARKS:
        return None
    most = Counter(shard_of(each.version) for each in note.marks()).most_common(4)
    return most[shard_of(str(token)) % len(most)][0]


def find(core: Registry, name: str, note: Note, version: str, limit: float) -> Effects[Outcome[Any] | None]:
    """The outcome of the version: from the note, or from its shard."""
    found = note.versions.get(version)
    number = shard_of(version)
    if found is not None or not note.shards >> number & 1:
        return found
    return (yield from _read_shard(core, name, number, limit)).get(version)


def move(core: Registry, lease: BaseLease, held: BaseLease, number: int) -> Effects[bool]:
    """Move marks to a shard, under the leases of the name and of the shard. False if nothing has moved.

    Each write is tried once: the caller has its outcome, and should not wait for this."""
    name = lease.name
    note = yield from read(core, name, timing.CALL_LIMIT)
    moving = {each.version: each for each in note.marks() if shard_of(each.version) == number}
    if not (yield from write(core, lease, name, note._replace(shards=note.shards | 1 << number), False)):
        return False
    there = yield from _read_shard(core, name, number, timing.CALL_LIMIT)
    text = _dump_shard(name, {**there, **moving})
    if len(text.encode()) > LONGEST_NOTE:
        log(WARNING, "no room for further old versions of %r: forget some", name, event="full")
        return False
    if not (yield from write_text(core, held, text, False)):
        return False
    left = {key: each for key, each in note.versions.items() if key not in moving}
    yield from write(core, lease, name, Note(left, note.shards | 1 << number, note.slots), False)
    return True


def shards(core: Registry, name: str, version: str | None) -> Effects[list[int]]:
    """The shards that may have the version (None: all shards). All that there are, if the note is damaged."""
    try:
        found = (yield from patiently(core, name, True, None, lambda limit: read(core, name, limit))).shards
    except DamagedNote:
        if version is not None:
            raise
        found = 0
        for number in range(SHARDS):
            if (yield Run(core.store.read_note(shard_name(name, number)), timing.CALL_LIMIT)) is not None:
                found |= 1 << number
    wanted = range(SHARDS) if version is None else [shard_of(version)]
    return [number for number in wanted if found >> number & 1]


def moved(core: Registry, name: str, note: Note) -> Effects[set[str]]:
    """The versions whose marks are in shards."""
    found: set[str] = set()
    for number in range(SHARDS):
        if note.shards >> number & 1:
            found.update((yield from _read_shard(core, name, number, timing.CALL_LIMIT)))
    return found


def erase(core: Registry, held: BaseLease, name: str, number: int, version: str | None) -> Effects[bool | None]:
    """Remove the version, or (None) all, from a shard, under the shard's lease. Returns whether there was one; None if
    the lease was lost before that."""
    if version is None:
        return True if (yield from write_text(core, held, None)) else None
    there = dict((yield from while_held(core, held, lambda: _read_shard(core, name, number, timing.CALL_LIMIT))))
    if there.pop(version, None) is None:
        return False
    return True if (yield from write_text(core, held, _dump_shard(name, there) if there else None)) else None


def _read_shard(core: Registry, name: str, number: int, limit: float) -> Effects[Mapping[str, Outcome[Any]]]:
    text = yield Run(core.store.read_note(shard_name(name, number)), limit)
    if text is None:
        return {}
    try:
        stored = json.loads(text)
        check_format(name, stored)
        if stored["of"] != name:
            raise ValueError(stored["of"])
        return read_rows(name, stored["outcomes"])
    except UNREADABLE as error:
        raise DamagedNote(
            f"outcomes of {name!r}, in the note of {shard_name(name, number)!r}, are damaged ({type(error).__name__}): "
            f"remove all with once({name!r}).forget(every_version=True)"
        ) from error


def _dump_shard(name: str, marks: Mapping[str, Outcome[Any]]) -> str:
    rows = {version: row_of(each) for version, each in marks.items()}
    return json.dumps({"format": 1, "of": name, "outcomes": rows}, separators=(",", ":"), ensure_ascii=False)
