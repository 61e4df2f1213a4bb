"""Work that is done once: the part that ``once`` of threads and of tasks share.

The outcomes of all versions are in the *note* beside the lease's name. The store writes a note only for the current
holder of the name, so an earlier holder that was overtaken cannot record an outcome. The other callers wait for the
name, and read the outcome when they acquire it.

``look`` reads before the lease is acquired, ``turn`` reads under the lease; after the call of the function, ``record``
writes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from ...core import checks, clock, timing
from ...core.effects import Effects, Run
from ...core.lease import BaseLease
from ...core.log import ERROR, INFO, WARNING, log
from ...core.observing import WorkEnded
from ...core.options import Spec
from ...core.registry import Registry
from ...errors import StoreError, StoreUnavailable
from . import archive, slots
from .call import Ran
from .note import LONGEST_ERROR, LONGEST_RESULT, DamagedNote, Note, recordable
from .outcome import DONE, FAILED, REFUSED, RUNNING, Outcome, TooManyOutcomes, bare
from .slots import SlotRecord
from .writing import patiently, read, while_held, write

NOT_RECORDED = "before the outcome was recorded"
KEEP = 100
MOST_KEPT = 1000


class Policy(NamedTuple):
    """The options of a caller of ``once``."""

    version: str
    wait: bool
    retries: int
    retry_by: str
    keep: int
    check: bool
    per: int | None = None
    """The length of a slot, in seconds: then ``version`` is the name of the slot that starts at ``slot``."""
    drift: float = 0.0
    slot: int = 0
    clocked: bool = True
    """Whether the slot is by the store's clock."""
    behind: int = 0
    """By how much the slot of the clock is before the last slot, in seconds."""
    ends: float | None = None
    """When the caller stops waiting, on the local clock; None: never."""

    def is_final(self, outcome: Outcome[Any] | None) -> bool:
        if outcome is None:
            return False
        return outcome.ok or outcome.status == REFUSED or outcome.attempts > self.retries

    def at(self, slot: int) -> Policy:
        return self._replace(slot=slot, version=slots.version(slot))

    def __str__(self) -> str:
        return f"version {self.version}" if self.per is None else f"per {self.per} s"


def make_policy(
    core: Registry,
    spec: Spec,
    version: str | int | None,
    per: object,
    wait: bool,
    retries: int,
    retry_by: str,
    keep: int,
    check: bool,
) -> Policy:
    """Check the options of ``once``. Raises ValueError or TypeError."""
    if "note" in core.store.lacks:
        raise ValueError(f"once: {core.store.scheme} cannot record outcomes: {core.store.lacks['note']}")
    if retry_by not in ("any", "same"):
        raise ValueError(f'retry_by must be "any" or "same", not {retry_by!r}')
    checks.flag(wait, "wait")
    checks.flag(check, "check")
    options = (wait, _count(retries, "retries", 0), retry_by, _count(keep, "keep", 1, MOST_KEPT), check)
    if per is None:
        return Policy(version_text(1 if version is None else version), *options)
    if version is not None:
        raise ValueError("version and per exclude each other: with per, the time slot is the version")
    return Policy("", *options, per=slots.period(per), drift=spec.timing.drift or 0.0)


def _count(value: int, what: str, least: int, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{what} must be {least} or more{'' if most is None else f', up to {most}'}, not {value}")
    return value


def version_text(version: object) -> str:
    if isinstance(version, bool) or not isinstance(version, (str, int)):
        raise TypeError(f"version must be a str or an int, not {type(version).__name__}")
    return checks.text(str(version), "version", checks.MAX_LABEL)


class Known(NamedTuple):
    """What is known of the version that a caller wants."""

    wanted: Policy
    outcome: Outcome[Any] | None = None
    shard: int | None = None
    """The shard to which marks are to move now."""
    full: bool = False
    """Whether no version can be run before they have moved."""

    @property
    def final(self) -> bool:
        return self.wanted.is_final(self.outcome)


def ends_at(core: Registry, timeout: timing.Duration | None) -> float | None:
    patience = None if timeout is None else timing.patience(timeout)
    return None if patience is None else core.now() + patience


def look(core: Registry, name: str, wanted: Policy) -> Effects[Known]:
    """What is recorded of the version, before the lease is acquired."""

    def looking(limit: float) -> Effects[Known]:
        note = yield from read(core, name, limit)
        now = yield from _now(core, name, wanted, note, limit)
        return Known(now, (yield from _find(core, name, note, now, limit)))

    known = yield from patiently(core, name, wanted.wait, wanted.ends, looking)
    _warn_if_behind(name, known.wanted)
    _say(core, name, known)
    return known


def _warn_if_behind(name: str, now: Policy) -> None:
    """A slot that was recorded by a wrong clock would silently keep all others from running until it comes."""
    if now.per is not None and now.behind > now.per + now.drift:
        text = (
            "%r: the last slot, %s, is %s ahead of this clock, and no other runs until then; if it was recorded by a "
            "wrong clock, forget it: once(%r).forget(%r)"
        )
        fields = (name, now.version, timedelta(seconds=now.behind), name, now.version)
        log(WARNING, text, *fields, event="slot_ahead", name=name)


def turn(core: Registry, lease: BaseLease, wanted: Policy) -> Effects[Known]:
    """What is recorded of the version, under the lease. If the slot has passed in the meantime, that of the present
    slot. Raises TooManyOutcomes if there is no room for another version."""
    name = lease.name

    def looking(limit: float) -> Effects[tuple[Note, Known]]:
        note = yield from read(core, name, limit)
        known = Known(wanted, (yield from _find(core, name, note, wanted, limit)))
        if wanted.per is not None and not known.final:
            now = yield from _now(core, name, wanted, note, limit)
            known = Known(now, (yield from _find(core, name, note, now, limit)))
        return note, known

    note, known = yield from patiently(core, name, wanted.wait, wanted.ends, looking)
    if not known.final and not known.wanted.clocked:
        known = yield from _believe(core, lease, note, known)
    if not known.final and known.outcome is None and archive.size(note) > archive.LARGEST_NOTE:
        known = known._replace(shard=archive.due(note, lease.token), full=True)
    _say(core, name, known)
    return known


def _now(core: Registry, name: str, wanted: Policy, note: Note, limit: float) -> Effects[Policy]:
    """With ``per``, the policy for the present slot. It is never earlier than the last recorded slot."""
    if wanted.per is None:
        return wanted
    now = yield Run(core.store.read_clock(name), limit)
    start = slots.start(clock.wall_us() if now is None else now, wanted.per)
    last = start if note.slots is None or note.slots.last is None else note.slots.last
    behind = max(0, last - start)
    return wanted._replace(clocked=now is not None, behind=behind).at(max(start, last))


def _find(core: Registry, name: str, note: Note, wanted: Policy, limit: float) -> Effects[Outcome[Any] | None]:
    if wanted.per is None:
        return (yield from archive.find(core, name, note, wanted.version, limit))
    return None if note.slots is None else note.slots.outcomes.get(wanted.version)


def _believe(core: Registry, lease: BaseLease, note: Note, known: Known) -> Effects[Known]:
    """Refuse a slot that is too far ahead, on a store without a clock."""
    found, wanted, here = note.slots or SlotRecord(), known.wanted, slots.this_machine()
    assert wanted.per is not None
    if slots.is_believed(found, wanted.slot, wanted.per, wanted.drift, here):
        return known
    assert found.last is not None
    text = (
        "%r slot %s is refused: the last slot is %s, and nothing confirms this host's clock. It runs when another "
        "machine proposes it too, or when a whole slot has passed without a record; to run it now: once(%r).forget(%r)"
    )
    fields = (lease.name, wanted.version, slots.version(found.last), lease.name, wanted.version)
    log(WARNING, text, *fields, event="slot_refused", name=lease.name)
    yield from write(core, lease, lease.name, note._replace(slots=slots.refused(found, wanted.slot, here)))
    return known._replace(outcome=bare(lease.name, wanted.version, REFUSED, 0))


def _say(core: Registry, name: str, known: Known) -> None:
    found = known.outcome
    if known.final and found is not None and found.status != REFUSED:
        core.note(WorkEnded("skipped"))
        text = "%r version %s is %s, by %s: skipped"
        log(INFO, text, name, found.version, found.status, found.owner, event="skipped")


def no_room(name: str) -> TooManyOutcomes:
    return TooManyOutcomes(
        f"no room to record another version of {name!r}: its notes are full; forget old versions with "
        "once(name).forget(version), or all with once(name).forget(every_version=True)"
    )


def record(core: Registry, lease: BaseLease, wanted: Policy, ran: Ran) -> Effects[Known]:
    """Record the outcome of a call under the lease. Without an outcome: the lease was lost before that."""
    name, version = lease.name, wanted.version

    def looking() -> Effects[tuple[Note, Outcome[Any] | None]]:
        note = yield from read(core, name, timing.CALL_LIMIT)
        return note, (yield from _find(core, name, note, wanted, timing.CALL_LIMIT))

    try:
        note, before = yield from while_held(core, lease, looking)
    except StoreUnavailable:  # until the lease was lost
        return _not_recorded(core, wanted, name)
    outcome = _made(lease, version, 1 if before is None else before.attempts + 1, ran)
    if wanted.per is None:
        others = {key: each for key, each in note.versions.items() if key != version}
        note = note._replace(versions={**others, version: outcome})
    else:
        found = note.slots or SlotRecord()
        others = {key: each for key, each in found.outcomes.items() if key != version}
        last = wanted.slot if found.last is None else max(found.last, wanted.slot)
        note = note._replace(slots=SlotRecord(last, slots.this_machine(), outcomes={**others, version: outcome}))
    note = note.trimmed(wanted.keep)
    if (yield from write(core, lease, name, note)):
        core.note(WorkEnded(outcome.status))
        return Known(wanted, outcome, archive.due(note, lease.token))
    return _not_recorded(core, wanted, name)


def _not_recorded(core: Registry, wanted: Policy, name: str) -> Known:
    core.note(WorkEnded("lost"))
    text = "%r version %s: the lease was lost before the outcome was recorded; the next caller does the work again"
    log(WARNING, text, name, wanted.version, event="not_recorded")
    return Known(wanted)


def after_loss(core: Registry, name: str, wanted: Policy) -> Effects[Known | None]:
    """What is recorded of the version when the lease was lost while the function ran. None if the store does not tell.
    Reads once: the loss is to be reported soon."""
    try:
        note = yield from read(core, name, timing.CALL_LIMIT)
        return Known(wanted, (yield from _find(core, name, note, wanted, timing.CALL_LIMIT)))
    except StoreError:
        return None


def _made(lease: BaseLease, version: str, attempts: int, ran: Ran) -> Outcome[Any]:
    error = None
    if ran.error is not None:
        error = f"{type(ran.error).__name__}: {ran.error}"[:LONGEST_ERROR].encode(errors="replace").decode()
        log(ERROR, "%r version %s failed, attempt %d", lease.name, version, attempts, exc=ran.error, event="failed")
    if ran.result is not None and recordable(ran.result) is None:
        text = "the result of %r version %s is not recorded: it is not JSON, or longer than %d characters"
        log(WARNING, text, lease.name, version, LONGEST_RESULT, event="result_not_recorded")
    finished = ran.started + timedelta(seconds=ran.duration)
    who = (lease.owner, lease.token, ran.started, finished, ran.duration)
    return Outcome(lease.name, version, DONE if error is None else FAILED, *who, error, attempts, ran.result, True)


def running(core: Registry, name: str, wanted: Policy) -> Effects[Outcome[Any]]:
    """The outcome to return when another holder is running the work: ``running``, or the outcome if it is final now."""
    holdings = yield Run(core.store.inspect(name), timing.CALL_LIMIT)
    note = yield from read(core, name, timing.CALL_LIMIT)
    found = yield from _find(core, name, note, wanted, timing.CALL_LIMIT)
    if wanted.is_final(found) and found is not None:
        return found
    holder = holdings[0] if holdings else None
    who = (holder and holder.owner, holder and holder.token)
    core.note(WorkEnded("skipped"))
    log(INFO, "%r version %s is being run by %s: skipped", name, wanted.version, who[0], event="skipped")
    return Outcome(name, wanted.version, RUNNING, *who, None, None, None, None, 0, None, False)


def recorded(core: Registry, name: str, wanted: Policy) -> Effects[Outcome[Any] | None]:
    note = yield from read(core, name, timing.CALL_LIMIT)
    now = yield from _now(core, name, wanted, note, timing.CALL_LIMIT)
    return (yield from _find(core, name, note, now, timing.CALL_LIMIT))


def history(core: Registry, name: str) -> Effects[list[Outcome[Any]]]:
    return (yield from read(core, name, timing.CALL_LIMIT)).history()


def count(core: Registry, name: str) -> Effects[int | None]:
    """How many versions are recorded; None if the record is damaged."""
    try:
        note = yield from read(core, name, timing.CALL_LIMIT)
        moved = yield from archive.moved(core, name, note)
    except DamagedNote:
        return None
    return len({*note.versions, *moved, *(note.slots.outcomes if note.slots else ())})


def later_slot(core: Registry, name: str, version: str) -> Effects[str | None]:
    """The last slot, if the version is an earlier one: that is not run again, whether it is forgotten or not."""
    note = yield from patiently(core, name, True, None, lambda limit: read(core, name, limit))
    if note.slots is None or note.slots.last is None or version not in note.slots.outcomes:
        return None
    last = slots.version(note.slots.last)
    return last if version != last else None


def present(core: Registry, name: str, wanted: Policy) -> Effects[str]:
    """The version: with ``per``, the present slot."""

    def reading(limit: float) -> Effects[str]:
        note = yield from read(core, name, limit)
        return (yield from _now(core, name, wanted, note, limit)).version

    return wanted.version if wanted.per is None else (yield from patiently(core, name, True, None, reading))


def forget(core: Registry, lease: BaseLease, version: str | None) -> Effects[bool | None]:
    """Remove one version, or (None) all, from the note. Returns whether there was one.

    None if the lease was lost before that."""
    name = lease.name
    try:
        note = yield from patiently(core, name, True, None, lambda limit: read(core, name, limit))
    except DamagedNote:
        if version is not None:
            raise
        return True if (yield from write(core, lease, name, Note())) else None
    left = Note()
    if version is not None:
        left = note._replace(versions={key: each for key, each in note.versions.items() if key != version})
        left = left._replace(slots=note.slots and note.slots.without(version))
    if left == note:
        return False
    return True if (yield from write(core, lease, name, left)) else None
