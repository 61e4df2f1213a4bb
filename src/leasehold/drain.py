"""Going out of service in good order: no new leases, wait for those that are held, give back the rest."""

from __future__ import annotations

from . import policy
from .core import Core
from .effects import Effects, Wait
from .keeping import give_up
from .lease import DRAINED, RELEASED, BaseLease
from .log import ERROR, INFO, WARNING, log

LOOK = 0.02
"""How often to look whether the last lease has ended."""
UNWIND = 0.5
"""How long a body that has just been told of its loss may take to stop before its lease is given to another."""
DRAINING = "this Locks is being drained: it gives out no new leases"


def begin(core: Core) -> None:
    """From now on no new leases: whoever waits for one is sent off."""
    if core.draining is not None:
        return
    core.draining = DRAINING
    for waiting in list(core.asking.values()):
        waiting.ring()
    for callback in list(core.on_drain):
        try:
            callback()
        except Exception as error:
            log(ERROR, "drain: %r failed, which does not stop it", callback, exc=error)


def drain(core: Core, grace: float) -> Effects[list[str]]:
    """See :meth:`leasehold.Locks.drain`. ``core.hurried`` ends the grace at once."""
    policy.seconds(grace, "grace", zero=True)
    core.check_open()
    started, bell = core.now(), core.new_bell()
    begin(core)
    names = _names(_work(core))
    log(INFO, "drain begins: no new leases; %s", _told(names, "held"), event="drain", names=names)
    quiet = 0
    while core.now() < started + grace and not core.hurried and quiet < 2:
        quiet = 0 if core.asking or core.giving or _work(core) else quiet + 1  # twice: one may be between two of these
        yield Wait(bell, LOOK)
    late = _work(core)
    if late:
        after = f"{core.now() - started:.3g} s" + (", hurried" if core.hurried else "")
        names = _names(late)
        log(WARNING, "drain gives up after %s: %s", after, _told(names, "lost"), event="drain_gave_up", names=names)
        for lease in late:
            core.lose(lease, DRAINED)
        ends = core.now() + UNWIND
        while core.now() < ends and (core.giving or not all(lease._given for lease in late)):
            yield Wait(bell, LOOK)
    ends = core.now() + policy.CALL_LIMIT
    yield from give_up(core, late, DRAINED, ends, bell)
    yield from give_up(core, list(core.standing.values()), RELEASED, ends, bell)
    while core.giving and core.now() < ends:
        yield Wait(bell, LOOK)
    if left := sorted({owed.name for owed in core.unsettled}):
        log(
            WARNING, "drain could not give back %s; the store forgets them in time", ", ".join(left), event="drain_left"
        )
        core.settle_soon()  # the keeper goes on with them; by itself it would look when the next renewal was due
    log(INFO, "drained in %.3g s", core.now() - started, event="drained")
    return _names(late)


def _work(core: Core) -> list[BaseLease]:
    """What is held and worth waiting for."""
    return [lease for lease in core.held() if lease._claim.attempt not in core.standing]


def _names(leases: list[BaseLease]) -> list[str]:
    return sorted(lease.name for lease in leases)


def _told(names: list[str], how: str) -> str:
    return f"{len(names)} {how}: {', '.join(map(repr, names))}" if names else f"nothing is {how}"
