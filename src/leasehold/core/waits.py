"""What an acquire reports about its wait: who holds the name, that it waits for itself, how long the store was away."""

from __future__ import annotations

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
        who = f"{shown(holder.owner)}{_relation(core, ask, busy)}"
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
        who = f"{shown(holder.owner)}{_relation(core, ask, busy)}"
        when = since.astimezone().isoformat(timespec="seconds")
        parts.append(f"held by {who} since {when} ({held_for:.3g} s), token {holder.token}")
    why = ", ".join([*parts, *_ahead(busy)]) or OTHERS
    notice("waiting for %r: %s", ask.name, why, event="waiting", **fields)


def warn_of_self_wait(core: Registry, ask: Ask, busy: Busy, begins: bool) -> bool:
    """Called when a wait ``begins``, and again when it is no longer short or has timed out. True if it has warned.

    When a wait begins, only the blocks of this thread or task count: a lease without a block may have been handed on,
    and be released soon."""
    found = _holding(busy)
    if found is None or not (_in_own_block(core, ask, *found) if begins else _is_own(core, ask, *found)):
        return False
    state, me = found[1], core.caller
    text = (
        "this %s waits for %s %s that it holds itself (%r, token %d): unless another %s releases it, "
        "it waits until its timeout, or until the lease expires%s"
    )
    article, advice = "an" if ask.shape == "rwlock" else "a", ""
    if state.spec.shape == ask.shape == "lock":
        advice = "; a lock that is entered again is an rlock"
    fields: dict[str, Any] = {"name": ask.name, "token": state.token, "owner": core.owner}
    log(WARNING, text, me, article, ask.shape, ask.name, state.token, me, advice, event="self_wait", **fields)
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


def _relation(core: Registry, ask: Ask, busy: Busy) -> str:
    """What the holder is to the caller, in brackets; nothing if it is in another process."""
    if (found := _holding(busy)) is None:
        return ""
    return f" (this {core.caller} itself)" if _is_own(core, ask, *found) else " (this process)"


def _holding(busy: Busy) -> tuple[Registry, LeaseState] | None:
    """The lease that holds the name, if it is one of this process."""
    if busy.holder is not None:
        for registry in _registries():
            kept = registry.leases.get(busy.holder.attempt)
            if kept is not None and (state := kept()) is not None:
                return registry, state
    return None


def _is_own(core: Registry, ask: Ask, registry: Registry, state: LeaseState) -> bool:
    """Whether the calling thread or task waits for its own lease: one that it acquired, or in whose block it is.

    Who acquired a permit says nothing: one thread often acquires the permits that others release."""
    me = core.me()
    plain = state.spec.shape == ask.shape == "lock"
    return (plain and me is not None and state.acquirer == me and _lasts(registry, state)) or _in_own_block(
        core, ask, registry, state
    )


def _in_own_block(core: Registry, ask: Ask, registry: Registry, state: LeaseState) -> bool:
    """Whether the name cannot become free for ``ask`` before a block of the calling thread or task has ended."""
    found = (each for where, parts in blocks_of(core.me()) if where is registry for each in parts)
    mine = {each for each in found if each.name == ask.name and _lasts(registry, each)}
    limit = max([ask.limit, *(each.spec.limit for each in mine)])
    return state in mine and sum(each.spec.weight for each in mine) + ask.weight > limit


def _lasts(registry: Registry, state: LeaseState) -> bool:
    """Whether the lease is held until it is released: one that is not renewed soon expires by itself."""
    return state.spec.timing.renew and registry.now() < state.trusted_until()


def _registries() -> list[Registry]:
    while True:
        try:
            return list(registries)
        except RuntimeError:
            pass  # another thread has just made one
