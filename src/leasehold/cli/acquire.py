"""How ``leasehold run`` and ``once`` acquire their lease: the whole of NAME, one of ``--limit`` permits, or a share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import clock
from ..core.acquire import WrongShape
from ..core.waits import NOTICE_AFTER
from ..errors import AcquireCancelled, AcquireTimeout, StoreUnavailable
from ..runtime.ready import readable
from .options import UsageError
from .say import held, say, span
from .store import checked, said_otherwise

if TYPE_CHECKING:
    from typing import Any

    from ..model import LeaseInfo
    from ..threads.lease import Lease
    from ..threads.lock import Lock
    from ..threads.locks import Locks
    from .options import Options
    from .signals import Signals

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.8
"""Between two tries for a share of a name that is held by a plain lock, which has a queue only for plain locks."""


def acquire(
    options: Options, locks: Locks, renew_every: float, signals: Signals, timeout: float | None
) -> Lease | int | None:
    """The lease; None if COMMAND is to run without it; an exit code if COMMAND is not to run."""
    began = clock.now()
    try:
        lease = _acquire(options, locks, renew_every, signals, timeout)
    except AcquireCancelled:
        return 128 + signals.take()[0]
    except AcquireTimeout as error:
        return _busy(options, error.holder)
    except WrongShape as error:
        raise UsageError(str(error)) from error
    except StoreUnavailable as error:
        if options.on_unavailable == "fail":
            raise
        if options.on_unavailable == "skip":
            say(f"COMMAND skipped (--on-unavailable skip): {error}")
            return options.on_busy_exit
        say(f"COMMAND runs without the lease (--on-unavailable run): {error}")
        return None
    if options.verbose and not isinstance(lease, int):
        say(f"acquired {lease.name!r} after {span(clock.now() - began)}, token {lease.token}")
    return lease


def _busy(options: Options, holder: LeaseInfo | None) -> int:
    who = held(holder) if holder is not None else "others hold it or wait for it"
    name = repr(options.name)
    what = f"timed out after {span(options.timeout)} waiting for {name}" if options.timeout else f"{name} is busy"
    say(f"{what}: {who}")
    return options.on_busy_exit


def _acquire(
    options: Options, locks: Locks, renew_every: float, signals: Signals, timeout: float | None
) -> Lease | int:
    """The lease, or the exit code if NAME is busy.

    A name in use by readers is a read/write lock, otherwise it is a plain one, as for programs. So a run without
    ``--shared`` becomes the writer of a name that has readers. A run with ``--shared`` cannot wait in the queue of a
    plain lock: it tries again and again."""
    ends = None if timeout is None else clock.now() + timeout
    pause, readers, verbose = _FIRST_PAUSE, options.shared, options.verbose
    silent_until = clock.now() + (0.0 if verbose else NOTICE_AFTER)
    while True:
        lock = _lock(options, locks, renew_every, readers)
        left = None if ends is None else max(0.0, ends - clock.now())
        try:
            if verbose and left != 0:
                if (lease := _try(lock, options, locks)) is not None:
                    return lease
                verbose = False
            return lock.acquire(left, cancel=signals)
        except WrongShape as error:
            expected = "lock" if readers else "rwlock"
            if options.command == "once" or options.limit is not None or error.shape != expected:
                raise
        if not options.shared:
            readers = not readers
            if readers:
                continue
        if left == 0:
            return _busy(options, locks.inspect(options.name))
        if "waiting" not in said_otherwise and clock.now() >= silent_until:
            _say_waiting(options, locks)
        readable(signals.fd, within=pause if left is None else min(pause, left))  # a signal ends the next acquire
        pause = min(2 * pause, _LONGEST_PAUSE)


def _lock(options: Options, locks: Locks, renew_every: float, readers: bool) -> Lock:
    timing: dict[str, Any] = {"ttl": options.ttl, "renew_every": renew_every, "min_hold": options.min_hold}
    kind = "once" if options.command == "once" else "lock"
    lock: Lock
    if (limit := options.limit) is not None:
        lock = checked(lambda: locks.semaphore(options.name, limit=limit, **timing))
    elif readers:
        sides = checked(locks.rwlock, options.name, **timing)
        lock = sides.read() if options.shared else sides.write()
    else:
        lock = checked(lambda: locks.lock(options.name, kind=kind, **timing))
    return lock


def _try(lock: Lock, options: Options, locks: Locks) -> Lease | None:
    """``--verbose``: the lease if it is free; otherwise None, after saying for what this process waits."""
    try:
        lease = lock.try_acquire()
    except StoreUnavailable as error:
        say(f"cannot reach the store; retrying: {error}")
        said_otherwise.add("unavailable")
        return None
    if lease is None:
        _say_waiting(options, locks)
    return lease


def _say_waiting(options: Options, locks: Locks) -> None:
    said_otherwise.add("waiting")
    try:
        holder = locks.inspect(options.name)
    except StoreUnavailable:
        holder = None
    who = "others hold it or wait for it" if holder is None else held(holder)
    ahead = f", {holder.waiters} waiters ahead" if holder is not None and holder.waiters is not None else ""
    say(f"waiting for {options.name!r}: {who}{ahead}")
