"""``Locks``, for asyncio: what :func:`leasehold.aio.connect` returns. The docstrings are in ``contract/locks.py``."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal, Unpack, overload

from ..contract.habits import OfTasks, explained
from ..contract.locks import LocksContract
from ..core import checks, listing
from ..core.options import Backoff, ConnectOptions, IfBusy, KindOptions, LockName, OnUnavailable
from ..core.protocol import Holding
from ..core.timing import Duration, Preset, PresetFields
from ..kinds import handover
from ..kinds.election.leadership import stopping_before
from ..kinds.election.tasks import Election
from ..kinds.group.membership import make_spec
from ..kinds.group.tasks import Group
from ..kinds.joint.reentrant import Holds
from ..kinds.joint.tasks import AllOf, RLock
from ..kinds.once.outcomes import KEEP, make_policy
from ..kinds.once.tasks import Once
from ..kinds.rwlock.tasks import RWLock
from ..model import Counters, Event, LeaseInfo, LockMetrics
from ..stores.urls import resolve
from .lease import Lease
from .lock import Acquiring, Lock, LockOptions, OnLost, SkippingLock, skipping
from .runner import TaskRegistry


def connect(
    url: object = None,
    *,
    namespace: str = "",
    owner: str | None = None,
    kinds: Mapping[str, Preset | PresetFields] | None = None,
    **timing: Unpack[ConnectOptions],
) -> Locks:
    """Connect to a store. Does no I/O, so it is not awaited in asyncio either: the first operation connects.

    Args:
        url: the store's URL, or a connected client of the user's own, which is never closed here. Default:
            $LEASEHOLD_URL, else a SQLite file in the user's state folder.
        namespace: keeps applications apart that share a store; at most 64 characters. Default: "".
        owner: the name of this instance in listings, logs and metrics. Default: host_pid_random.
        kinds: timing presets by kind, each a :class:`leasehold.Preset` or a mapping of its fields. Default: None.
        timing: defaults for the options of :meth:`Locks.lock` with the same names: ttl, timeout, renew, renew_every,
            max_hold, min_hold, beat_every, poll, backoff, drift and max_renew_failures.

    Raises:
        ValueError: the URL or an option is wrong.
        TypeError: an option is unknown or has the wrong type.
        ModuleNotFoundError: the store's driver is not installed. The message names the extra that installs it.

    Example::

        async with aio.connect("memory://", ttl=10) as locks, locks.lock("backup") as lease:
            lease.check()
    """
    opened, options = resolve(url, namespace, timing)
    core = TaskRegistry(opened.store, opened.tasks(), namespace=namespace, owner=owner, kinds=kinds, defaults=options)
    return Locks(core)


class Locks(OfTasks, LocksContract):
    """The leases of one namespace of one store. Made by :func:`leasehold.aio.connect`. Tasks of one loop share it.

    The end of an ``async with`` block closes it. Operations that ask the store raise StoreUnavailable if the store does
    not answer, StoreNotReady if it cannot serve leases, ShuttingDown after :meth:`close`. ::

        async with aio.connect("memory://") as locks:
            async with locks.lock("invoice:42", ttl=10, timeout=5) as lease:
                lease.check()
    """

    def __init__(self, core: TaskRegistry) -> None:
        self._core = core
        self._holds: Holds = weakref.WeakValueDictionary()

    @property
    def owner(self) -> str:
        return self._core.owner

    @property
    def namespace(self) -> str:
        return self._core.namespace

    @overload
    def lock(
        self, name: LockName, *, if_busy: Literal["wait", "raise"] = ..., **options: Unpack[LockOptions]
    ) -> Lock: ...

    @overload
    def lock(self, name: LockName, *, if_busy: Literal["skip"], **options: Unpack[LockOptions]) -> SkippingLock: ...

    @explained
    def lock(
        self,
        name: LockName,
        *,
        ttl: Duration | None = None,
        timeout: Duration | None = None,
        kind: str = "lock",
        data: Any = None,
        renew: bool | None = None,
        renew_every: Duration | None = None,
        max_hold: Duration | None = None,
        min_hold: Duration | None = None,
        beat_every: Duration | None = None,
        on_lost: OnLost | None = None,
        if_busy: IfBusy = "wait",
        on_unavailable: OnUnavailable = "raise",
        fair: bool | None = None,
        poll: tuple[Duration, Duration] | None = None,
        backoff: Backoff | None = None,
        drift: Duration | None = None,
        max_renew_failures: int | None = None,
    ) -> Lock | SkippingLock:
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
            if_busy=if_busy,
            on_unavailable=on_unavailable,
            fair=fair,
            poll=poll,
            backoff=backoff,
            drift=drift,
            max_renew_failures=max_renew_failures,
        )
        return skipping(Lock(self._core, spec, self))

    def once(
        self,
        name: str,
        *,
        version: str | int | None = None,
        per: Duration | None = None,
        wait: bool = True,
        retries: int = 0,
        retry_by: Literal["any", "same"] = "any",
        keep: int = KEEP,
        check: bool = True,
        **options: Unpack[KindOptions],
    ) -> Once:
        spec = self._core.kind_spec(name, "once", options, on_lost="cancel")
        policy = make_policy(self._core, spec, version, per, wait, retries, retry_by, keep, check)
        return Once(self._core, spec, policy, self)

    def election(
        self,
        name: str,
        *,
        stop_before: Duration | None = None,
        on_error: Literal["log", "raise"] = "log",
        **options: Unpack[KindOptions],
    ) -> Election:
        spec = self._core.kind_spec(name, "election", options)
        return Election(self._core, spec, stopping_before(spec, stop_before), on_error, self)

    def group(
        self,
        name: str,
        *,
        heartbeat: Duration | None = None,
        misses: int = 3,
        kind: str = "member",
        look: Duration | None = None,
    ) -> Group:
        return Group(self._core, *make_spec(self._core, name, heartbeat, misses, kind, look), self)

    @overload
    def semaphore(
        self, name: LockName, *, limit: int, if_busy: Literal["wait", "raise"] = ..., **options: Unpack[LockOptions]
    ) -> Lock: ...

    @overload
    def semaphore(
        self, name: LockName, *, limit: int, if_busy: Literal["skip"], **options: Unpack[LockOptions]
    ) -> SkippingLock: ...

    def semaphore(
        self, name: LockName, *, limit: int, if_busy: IfBusy = "wait", **options: Unpack[LockOptions]
    ) -> Lock | SkippingLock:
        return skipping(Lock(self._core, self._core.semaphore_spec(name, limit, options, if_busy), self))

    def rwlock(self, name: LockName, **options: Unpack[LockOptions]) -> RWLock:
        return RWLock(self._core, name, options, self)

    @overload
    def rlock(
        self, name: LockName, *, if_busy: Literal["wait", "raise"] = ..., **options: Unpack[LockOptions]
    ) -> RLock: ...

    @overload
    def rlock(self, name: LockName, *, if_busy: Literal["skip"], **options: Unpack[LockOptions]) -> SkippingLock: ...

    def rlock(
        self, name: LockName, *, if_busy: IfBusy = "wait", **options: Unpack[LockOptions]
    ) -> RLock | SkippingLock:
        return skipping(RLock(self._core, self._core.lock_spec("rlock", name, options, if_busy), self._holds, self))

    @overload
    def all_of(
        self, *names: LockName, if_busy: Literal["wait", "raise"] = ..., **options: Unpack[LockOptions]
    ) -> AllOf: ...

    @overload
    def all_of(self, *names: LockName, if_busy: Literal["skip"], **options: Unpack[LockOptions]) -> SkippingLock: ...

    def all_of(
        self, *names: LockName, if_busy: IfBusy = "wait", **options: Unpack[LockOptions]
    ) -> AllOf | SkippingLock:
        return skipping(AllOf(self._core, self._core.all_specs(names, options, if_busy), self))

    def accept(self, text: str, **options: Unpack[LockOptions]) -> Acquiring[Lease]:
        spec = handover.heir_spec(self._core, text, options)
        return Acquiring(self._core.acquire(Lease, spec, spec.timeout))

    def leases(self, prefix: str = "") -> AsyncIterator[LeaseInfo]:
        holdings = self._holdings(checks.prefix(prefix))
        return (listing.info(holding) async for holding in holdings if holding.expires_in > 0)

    async def inspect(self, name: str) -> LeaseInfo | None:
        holdings = await self._core.call(self._core.store.inspect(checks.name(name)))
        return listing.first(holdings)

    async def break_lease(self, name: str, force: bool = False) -> bool:
        broken = bool(await self._core.call(self._core.store.interrupt(checks.name(name), force)))
        if broken:
            self._core.tell("broken", name, None, "free at once (force=True)" if force else "the holder is notified")
        return broken

    def counters(self) -> Counters:
        return self._core.counters()

    async def metrics(self) -> LockMetrics:
        return listing.metrics(self._core, [holding async for holding in self._holdings("")])

    def on_event(self, callback: Callable[[Event], object]) -> None:
        checks.callback(callback, "on_event", tasks=True)
        self._core.listeners.append(callback)

    async def drain(self, grace: Duration = 300) -> list[str]:
        return await self._core.drain(grace)

    def drain_on_signals(self, grace: Duration = 300) -> None:
        from ..runtime.signals import TaskDrain, add

        self._core.bind()
        add(TaskDrain(self._core, grace))

    async def close(self) -> None:
        while self._core.signalled is not None and not self._core.signalled.done.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # (another thread sets it)
        await self._core.close()

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<leasehold.aio.Locks {self._core.store.scheme} namespace={self.namespace!r} owner={self.owner!r}>"

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            core.drop()

    async def _holdings(self, prefix: str) -> AsyncIterator[Holding]:
        after: str | None = ""
        while after is not None:
            page, after = await self._core.call(self._core.store.scan(prefix, after, listing.PAGE))
            for holding in page:
                yield holding
