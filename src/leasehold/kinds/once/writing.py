"""Reads and writes notes; tries again while that makes sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...core import timing
from ...core.effects import RETRY, Effects, Run, Wait
from ...core.lease import BaseLease, state_of
from ...core.registry import Registry
from ...core.waits import gave_up, say_unavailable
from ...errors import StoreUnavailable
from .note import Note, dump, load

T = TypeVar("T")


def read(core: Registry, name: str, limit: float) -> Effects[Note]:
    core.check_open()
    return load(name, (yield Run(core.store.read_note(name), limit)))


def patiently(
    core: Registry, name: str, waits: bool, ends: float | None, reading: Callable[[float], Effects[T]]
) -> Effects[T]:
    """``reading(limit)``. If the caller waits, a store that is unavailable is retried for as long as by an acquire."""
    bell, pause, limit = core.new_bell(), RETRY, timing.CALL_LIMIT
    failing_since, tries = 0.0, 0
    while True:
        asked = core.now()
        try:
            return (yield from reading(limit))
        except StoreUnavailable as error:
            now, tries = core.now(), tries + 1
            if tries == 1:
                failing_since = asked
            left = (failing_since + timing.UNAVAILABLE_LIMIT if ends is None else ends) - now
            retries = left > 0 and waits and core.draining is None
            if tries == 1:
                say_unavailable(core, name, error, left if retries else 0.0)
            if not retries:
                cause = error.__cause__ and error.__cause__.with_traceback(None)
                raise gave_up(f"read the outcomes of {name!r}", error, tries, failing_since, now) from cause
        yield Wait(bell, pause if ends is None else min(pause, ends - now))
        pause = min(2 * pause, 2.0)
        if ends is not None:
            limit = min(timing.CALL_LIMIT, max(0.5, ends - core.now()))


def while_held(core: Registry, lease: BaseLease, reading: Callable[[], Effects[T]]) -> Effects[T]:
    """``reading()``, tried again while the lease is held: the work is done, and its outcome must not be lost."""
    bell = core.new_bell()
    while True:
        try:
            return (yield from reading())
        except StoreUnavailable:
            if not lease.valid:
                raise
            yield Wait(bell, min(RETRY, lease.remaining))


def write(core: Registry, lease: BaseLease, name: str, note: Note, retries: bool = True) -> Effects[bool]:
    """Write the note of the lease's name, with retries while the lease is valid. False if it was lost before that."""
    return (yield from write_text(core, lease, dump(name, note), retries))


def write_text(core: Registry, lease: BaseLease, text: str | None, retries: bool = True) -> Effects[bool]:
    claim, bell = state_of(lease).claim, core.new_bell()
    while lease.valid:
        try:
            steps = core.store.write_note(claim.name, claim.attempt, claim.token, text)
            written: bool = yield Run(steps, max(0.05, min(timing.CALL_LIMIT, lease.remaining)))
            return written
        except StoreUnavailable:
            if not retries:
                raise
            yield Wait(bell, min(RETRY, lease.remaining))
    return False
