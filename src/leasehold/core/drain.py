"""``drain``: acquire no new leases, wait for those that are held, release the rest."""

from __future__ import annotations

from . import timing
from .claim import DRAINED, RELEASED
from .effects import Effects, Wait
from .keeper import end_all
from .lease import blocks_of, own_state_of
from .log import ERROR, INFO, WARNING, log
from .registry import Registry
from .state import LeaseState

LOOK = 0.02
"""How often to check whether the last lease has ended."""
UNWIND = 0.5
"""How long a body that was just notified of its loss may take to stop before its lease is released."""
DRAINING = "this Locks is being drained: it acquires no new leases"


def begin(core: Registry) -> None:
    """From now on acquire no new leases. Waiters get ShuttingDown."""
    if core.draining is not None:
        return
    core.draining = DRAINING
    for waiting in list(core.asking.values()):
        waiting.ring()
    for callback in list(core.on_drain):
        try:
            callback()
        except Exception as error:
            log(ERROR, "the callback %r raised an error; the drain continues", callback, exc=error)


def drain(core: Registry, grace: timing.Duration) -> Effects[list[str]]:
    """See :meth:`leasehold.Locks.drain`. ``core.hurried`` ends the grace at once."""
    grace = timing.seconds(grace, "grace", zero=True)
    core.check_open()
    started, bell = core.now(), core.new_bell()
    begin(core)
    names = _names(_work(core))
    log(INFO, "drain begins, no new leases; %s", _told(names, "held"), event="drain", names=names)
    if own := _own_blocks(core):
        text = "drain was called inside the caller's own block of %s: it waits for that until its grace is over"
        log(WARNING, text, ", ".join(map(repr, own)), event="drain_in_own_block", names=own)
    quiet = 0
    while core.now() < started + grace and not core.hurried and quiet < 2:
        # Checked twice: a lease may be moving from one of these to the next during the first check.
        quiet = 0 if core.asking or core.giving or _work(core) else quiet + 1
        yield Wait(bell, LOOK)
    late = _work(core)
    if late:
        waited, names = f"{core.now() - started:.3g} s", _names(late)
        text = "drain ended by a second signal after %s: %s" if core.hurried else "drain timed out after %s: %s"
        log(WARNING, text, waited, _told(names, "lost"), event="drain_gave_up", names=names)
        for state in late:
            core.lose(state, DRAINED)
        ends = core.now() + UNWIND
        while core.now() < ends and (core.giving or any(state.released_by is None for state in late)):
            yield Wait(bell, LOOK)
    ends = core.now() + timing.CALL_LIMIT
    yield from end_all(core, late, DRAINED, ends, bell)
    standing = [own_state_of(lease) for lease in list(core.standing.values())]
    yield from end_all(core, standing, RELEASED, ends, bell)
    while core.giving and core.now() < ends:
        yield Wait(bell, LOOK)
    if left := sorted({owed.name for owed in core.unsettled}):
        text = "drain could not release %s; retrying until they expire"
        log(WARNING, text, ", ".join(map(repr, left)), event="drain_left")
        core.settle_soon()  # the keeper retries now, not only when the next renewal is due
    log(INFO, "drained in %.3g s", core.now() - started, event="drained")
    return _names(late)


def _work(core: Registry) -> list[LeaseState]:
    """The leases to wait for: all but memberships of groups."""
    return [state for state in core.held() if state.claim.attempt not in core.standing]


def _own_blocks(core: Registry) -> list[str]:
    """The names of the leases whose blocks the calling thread or task is in."""
    return _names(
        [state for registry, parts in blocks_of(core.me()) if registry is core for state in parts if not state.end]
    )


def _names(states: list[LeaseState]) -> list[str]:
    return sorted(state.name for state in states)


def _told(names: list[str], how: str) -> str:
    if not names:
        return f"no lease is {how}"
    return f"{len(names)} {'lease' if len(names) == 1 else 'leases'} {how}: {', '.join(map(repr, names))}"
