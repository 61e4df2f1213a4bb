"""``Locks``, for threads: what :func:`leasehold.connect` returns."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..core import checks, listing
from ..core.drain import drain
from ..core.protocol import Holding
from ..kinds import handover
from ..kinds.election.leadership import stopping_before
from ..kinds.election.threads import Election
from ..kinds.group.membership import make_spec
from ..kinds.group.threads import Group
from ..kinds.joint.reentrant import Holds
from ..kinds.joint.threads import AllOf, RLock
from ..kinds.once.outcomes import make_policy
from ..kinds.once.threads import Once
from ..kinds.rwlock.threads import RWLock
from ..model import Counters, Event, LeaseInfo, LockMetrics
from ..stores.urls import resolve
from .lease import Lease
from .lock import Lock
from .runner import ThreadRegistry


def connect(
    url: object = None,
    *,
    namespace: str = "",
    owner: str | None = None,
    kinds: Mapping[str, object] | None = None,
    **timing: Any,
) -> Locks:
    """Connect to a store. Does no I/O: the first operation does.

    ``url``: the store's URL, or a client that is already connected (it is never closed here); by default
    $LEASEHOLD_URL, else a SQLite file in the user's state folder.
    ``namespace``: keeps applications apart that share a store. ``owner``: the name of this instance in listings and
    logs; by default ``host_pid_random``. ``kinds``: timing presets by kind, see :class:`leasehold.Preset`.
    ``timing``: defaults for the options of :meth:`Locks.lock` with the same names (``ttl=``, ``timeout=`` …).

    Raises ValueError or TypeError for a wrong URL or option, ModuleNotFoundError if the store's driver is not
    installed. ::

        with leasehold.connect("redis://localhost:6379/0", ttl=10) as locks, locks.lock("backup") as lease:
            lease.check()
    """
    opened, options = resolve(url, namespace, timing)
    core = ThreadRegistry(
        opened.store, opened.threads(), namespace=namespace, owner=owner, kinds=kinds, defaults=options
    )
    return Locks(core)


class Locks:
    """Leases of one namespace of one store. Made by :func:`leasehold.connect`."""

    def __init__(self, core: ThreadRegistry) -> None:
        self._core = core
        self._holds: Holds = weakref.WeakValueDictionary()

    @property
    def owner(self) -> str:
        return self._core.owner

    @property
    def namespace(self) -> str:
        return self._core.namespace

    def lock(
        self,
        name: str,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        kind: str = "lock",
        data: Any = None,
        renew: bool | None = None,
        renew_every: float | None = None,
        max_hold: float | None = None,
        min_hold: float | None = None,
        beat_every: float | None = None,
        on_lost: Callable[[Lease], object] | str | None = None,
        on_unavailable: str = "raise",
        fair: bool | None = None,
        poll: tuple[float, float] | None = None,
        backoff: str | None = None,
        drift: float | None = None,
        max_renew_failures: int | None = None,
    ) -> Lock:
        """A name to contend for. Nothing is asked of the store yet; wrong options are refused here."""
        spec = self._core.spec(
            name,
            ttl=ttl,
            timeout=timeout,
            kind=kind,
            data=data,
            renew=renew,
            renew_every=renew_every,
            max_hold=max_hold,
            min_hold=min_hold,
            beat_every=beat_every,
            on_lost=on_lost,
            on_unavailable=on_unavailable,
            fair=fair,
            poll=poll,
            backoff=backoff,
            drift=drift,
            max_renew_failures=max_renew_failures,
        )
        return Lock(self._core, spec, self)

    def once(
        self,
        name: str,
        *,
        version: str | int = 1,
        wait: bool = True,
        retries: int = 0,
        retry_by: str = "any",
        **options: Any,
    ) -> Once:
        """Work that is done once per ``version``: the others wait for its outcome, or (``wait=False``) go on.

        Work that fails is tried ``retries`` times again: by whoever is next, or ``retry_by="same"``. Options are those
        of a lease: ttl, renew_every, drift, max_renew_failures, data, kind."""
        spec = self._core.kind_spec(name, "once", options)
        return Once(self._core, spec, make_policy(self._core, version, wait, retries, retry_by), self)

    def election(self, name: str, *, stop_before: float | None = None, **options: Any) -> Election:
        """One leader among candidates: those who call its ``run``. ``data=`` is what others see of the leader.

        A leader that cannot renew its term is told to stop ``stop_before`` seconds before the term ends. Options are
        those of a lease: ttl, renew_every, drift, max_renew_failures, data, kind."""
        spec = self._core.kind_spec(name, "election", options)
        return Election(self._core, spec, stopping_before(spec, stop_before), self)

    def group(
        self,
        name: str,
        *,
        heartbeat: float | None = None,
        misses: int = 3,
        kind: str = "member",
        look: float | None = None,
    ) -> Group:
        """Members that beat every ``heartbeat`` seconds (that of the kind's preset, else 30); one that has missed
        ``misses`` beats has failed. Who comes and goes is looked for every ``look`` seconds."""
        return Group(self._core, *make_spec(self._core, name, heartbeat, misses, kind, look), self)

    def semaphore(self, name: str, *, limit: int, **options: Any) -> Lock:
        """A name that at most ``limit`` can hold at once, each with a lease of its own. Options as for :meth:`lock`."""
        return Lock(self._core, self._core.semaphore_spec(name, limit, options), self)

    def rwlock(self, name: str, **options: Any) -> RWLock:
        """Many readers or one writer: ``.read()`` and ``.write()`` are locks. Options as for :meth:`lock`."""
        return RWLock(self._core, name, options, self)

    def rlock(self, name: str, **options: Any) -> Lock:
        """A lock that its holder (this ``Locks``, in the same thread) can enter again. Options as for :meth:`lock`."""
        return RLock(self._core, self._core.lock_spec("rlock", name, options), self._holds, self)

    def all_of(self, *names: str, **options: Any) -> AllOf:
        """Several names, all or none. ``lease.tokens`` has the token of each. Options as for :meth:`lock`."""
        return AllOf(self._core, self._core.all_specs(names, options), self)

    def accept(self, text: str, **options: Any) -> Lease:
        """Take over a lease with what its holder's ``transfer()`` gave, at once and with a new token.

        Options are those of :meth:`lock`; ttl, kind and data are the holder's unless given. Raises LeaseLost when there
        is nothing to be taken over any more."""
        spec = handover.heir_spec(self._core, text, options)
        return self._core.acquire(Lease, spec, spec.timeout, None)

    def leases(self, prefix: str = "") -> Iterator[LeaseInfo]:
        """What is held in this namespace now, by name."""
        holdings = self._holdings(checks.prefix(prefix))
        return (listing.info(holding) for holding in holdings if holding.expires_in > 0)

    def inspect(self, name: str) -> LeaseInfo | None:
        """Who holds ``name`` (of several holders, the first), or None."""
        holdings = self._core.call(self._core.store.inspect(checks.name(name)))
        return listing.first(holdings)

    def break_lease(self, name: str, force: bool = False) -> bool:
        """Take a lease from its holder. False when nobody holds it.

        The holder is told and no longer renewed; the name is free when its block has ended or its lease has run
        out. ``force=True`` frees it at once, while the holder may still believe in it until it hears of it.
        """
        broken = bool(self._core.call(self._core.store.interrupt(checks.name(name), force)))
        if broken:
            self._core.tell("broken", name, None, "free at once (force=True)" if force else "the holder is notified")
        return broken

    def counters(self) -> Counters:
        """How renewals and acquires of this ``Locks`` have fared. Asks nothing of the store, so there also when that is
        away: what to alert on."""
        return self._core.counters()

    def metrics(self) -> LockMetrics:
        """What is held in the namespace, and :meth:`counters`. Goes through all records of the namespace."""
        return listing.metrics(self._core, self._holdings(""))

    def on_event(self, callback: Callable[[Event], object]) -> None:
        """Have ``callback(event)`` called, from a thread of its own, for everything that happens to our leases."""
        checks.callback(callback, "on_event", tasks=False)
        self._core.listeners.append(callback)

    def drain(self, grace: float = 300) -> list[str]:
        """Go out of service: no new leases (``ShuttingDown``), wait up to ``grace`` seconds for those that are held,
        mark what remains as lost, give it back, leave the groups. Returns the names of what had to be given up."""
        return self._core.drive(drain(self._core, grace))

    def drain_on_signals(self, grace: float = 300) -> None:
        """:meth:`drain` on SIGTERM and SIGINT; a second one ends the grace. Handlers that were there before are called
        too; where there were none, the process then exits with 0. To be called in the main thread."""
        from ..runtime.signals import ThreadDrain, add

        add(ThreadDrain(self._core, grace))

    def close(self) -> None:
        """Mark what is still held as lost, give it back, stop everything of ours. Again is harmless.

        A drain that a signal has begun is let finish first."""
        if self._core.signalled is not None:
            self._core.signalled.done.wait()
        self._core.close()

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<leasehold.Locks {self._core.store.scheme} namespace={self.namespace!r} owner={self.owner!r}>"

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            core.drop()

    def _holdings(self, prefix: str) -> Iterator[Holding]:
        after: str | None = ""
        while after is not None:
            page, after = self._core.call(self._core.store.scan(prefix, after, listing.PAGE))
            yield from page
