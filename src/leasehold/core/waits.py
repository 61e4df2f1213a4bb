"""What an acquire tells about its wait: who holds the name, that it waits for itself, how long the store was away."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from ..errors import AcquireTimeout, StoreUnavailable
from ..runtime.hooks import registries
from .lease import blocks_of
from .listing import info
from .log import WARNING, log, notice, shown
from .protocol import Ask, Busy
from .registry import Registry
from .state import LeaseState

NOTICE_AFTER = 1.0
"""After how long a wait is no longer silent."""
OTHERS = "others hold it or wait for it"


def timed_out(core: Registry, ask: Ask, busy: Busy, asked: float) -> AcquireTimeout:
    """The error of an acquire, begun at ``asked``, that may wait no longer. Reports it as an event, too."""
    waited = core.now() - asked
    fields: dict[str, Any] = {}
    parts = []
    holder, holding = busy.holder, busy.holder and info(busy.holder)
    if holder is not None and holding is not None:
        fields = {"holder": holder.owner, "holder_token": holder.token, "until": holding.expires}
        who = f"{shown(holder.owner)}{_relation(core, ask, busy, waited < NOTICE_AFTER)}"
        parts.append(
            f"held by {who} for {holder.age:.3g} s, expires in {holder.expires_in:.3g} s (token {holder.token})"
        )
    why = ", ".join([*parts, *_ahead(busy)]) or OTHERS
    core.tell("refused", ask.name, None, why, kind=ask.kind, asked=asked, **fields)
    what = f"timed out after {waited:.3g} s waiting for {ask.name!r}" if ask.queue else f"{ask.name!r} is busy"
    return AcquireTimeout(f"{what}: {why}", holding)


def say_waiting(core: Registry, ask: Ask, busy: Busy, age: float) -> None:
    """The one line about a wait that is no longer short. ``busy`` was answered ``age`` seconds ago."""
    fields: dict[str, Any] = {"name": ask.name, "owner": core.owner, "ahead": busy.place}
    parts = []
    if (holder := busy.holder) is not None:
        held_for = holder.age + age
        since = datetime.now(UTC) - timedelta(seconds=held_for)
        fields |= {"holder": holder.owner, "holder_token": holder.token, "since": since}
        who = f"{shown(holder.owner)}{_relation(core, ask, busy, False)}"
        when = since.astimezone().isoformat(timespec="seconds")
        parts.append(f"held by {who} since {when} ({held_for:.3g} s), token {holder.token}")
    why = ", ".join([*parts, *_ahead(busy)]) or OTHERS
    notice("waiting for %r: %s", ask.name, why, event="waiting", **fields)


def warn_of_self_wait(core: Registry, ask: Ask, busy: Busy, begins: bool) -> bool:
    """Called when a wait ``begins``, and once more when it is no longer short. True if there was a warning."""
    if not _is_of_this_process(busy) or not _waits_for_itself(core, ask, busy, begins):
        return False
    assert busy.holder is not None
    token, me = busy.holder.token, core.caller
    text = "this %s waits for itself: it holds %r already (token %d); a lock that is entered again is an rlock"
    log(WARNING, text, me, ask.name, token, event="self_wait", name=ask.name, token=token, owner=core.owner)
    return True


def say_unavailable(core: Registry, name: str, error: StoreUnavailable, retry_for: float, **fields: Any) -> None:
    """The event that a store does not answer, and for how long it is tried again; 0: it is not."""
    then = f"; retrying for up to {retry_for:.3g} s" if retry_for else ""
    core.tell("unavailable", name, None, f"{error}{then}", retry_for=retry_for, **fields)


def gave_up(what: str, error: StoreUnavailable, tries: int, since: float, now: float) -> StoreUnavailable:
    """The last error of a store that did not answer, with how long that was tried."""
    tried = "once" if tries == 1 else f"{tries} times"
    found = StoreUnavailable(f"cannot {what}, tried {tried} in {now - since:.3g} s: {error}")
    found.queued = error.queued
    return found


def _ahead(busy: Busy) -> list[str]:
    if busy.place is None:
        return []
    return ["1 waiter ahead" if busy.place == 1 else f"{busy.place} waiters ahead"]


def _relation(core: Registry, ask: Ask, busy: Busy, begins: bool) -> str:
    """What the holder is to the caller, in brackets; nothing if it is in another process."""
    if not _is_of_this_process(busy):
        return ""
    return f" (this {core.caller} itself)" if _waits_for_itself(core, ask, busy, begins) else " (this process)"


def _is_of_this_process(busy: Busy) -> bool:
    return busy.holder is not None and any(busy.holder.attempt in each.leases for each in _registries())


def _waits_for_itself(core: Registry, ask: Ask, busy: Busy, begins: bool) -> bool:
    """Whether the name cannot become free as long as the calling thread or task waits for it.

    That is certain of a lease whose block the caller is in, and of any lease if nothing else runs that could release
    it. Otherwise it may have been handed to another thread or task, which will release it."""
    assert busy.holder is not None
    for registry, mine in _held_here(core, begins):
        now = registry.now()
        held = [each.spec for each in mine if each.name == ask.name and each.end is None and now < each.deadline]
        if any(each.claim.attempt == busy.holder.attempt for each in mine):
            limit = max([ask.limit, *(spec.limit for spec in held)])
            if sum(spec.weight for spec in held) + ask.weight > limit:
                return True
    return False


def _held_here(core: Registry, begins: bool) -> Iterator[tuple[Registry, Collection[LeaseState]]]:
    """What nobody but the calling thread or task is going to release, by registry."""
    blocks: dict[Registry, set[LeaseState]] = {}
    for registry, states in blocks_of(core.me()):
        blocks.setdefault(registry, set()).update(states)
    yield from blocks.items()
    alike = [each for each in _registries() if type(each) is type(core)]
    yield from ((each, each.held()) for each in alike if each.is_alone(begins))


def _registries() -> list[Registry]:
    while True:
        try:
            return list(registries)
        except RuntimeError:
            pass  # another thread has just made one
