"""What the author of a store declares for the conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from .. import aio
from ..core.protocol import Opened
from ..tasks.runner import TaskRegistry
from ..threads.locks import Locks, connect
from ..threads.runner import ThreadRegistry

THREADS, ASYNCIO = "threads", "asyncio"


class Held(NamedTuple):
    """A holder in the store. ``expires_in`` is in seconds by the store's clock; below 0 it has expired."""

    owner: str
    token: int
    expires_in: float


class Probe(Protocol):
    """Reads the store directly: with a connection of its own, and without leasehold's code."""

    def names(self, namespace: str) -> Sequence[str]:
        """Every name in ``namespace`` that has a holder or waiter; free names with a record may be included."""

    def holders(self, namespace: str, name: str) -> Sequence[Held]:
        """The holders of ``name`` in ``namespace``; expired holders may be included."""

    def waiters(self, namespace: str, name: str) -> int:
        """How many wait for ``name`` in ``namespace``, without expired waiters."""


@dataclass(frozen=True)
class StoreUnderTest:
    """A store and its abilities. The defaults are what the promises require."""

    name: str
    url: str
    """What ``connect`` takes, in this process and in others."""
    probe: Probe
    opener: str | None = None
    """For a store that ``connect`` does not know: ``module:function``, where ``function(url, namespace)`` returns an
    :class:`leasehold.core.protocol.Opened`."""
    client: Callable[[str], Any] | None = None
    """Creates the client that ``connect`` gets instead of the URL, for ``"threads"`` or ``"asyncio"``. Never closed."""

    shared: bool = True
    """Whether other processes that open the URL see the same leases."""
    push: bool = True
    """Whether a release reaches a waiter without a poll."""
    fair: bool = True
    """Whether waiters are served in order."""
    joint: bool = False
    """Whether it takes several names in one step: see :class:`leasehold.core.protocol.Store`."""
    lacks: Sequence[str] = ()
    """What the store itself declares as lacking: see :class:`leasehold.core.protocol.Store`."""

    ttl: float = 0.6
    """The ttl that most tests take. Their length grows with it."""
    slack: float = 0.5
    """How late the store may be, beyond the bounds of the promises, on a loaded machine, in seconds."""
    late: float = 0.0
    """How much longer than asked for the store may keep an expired lease: its leases may last whole seconds."""
    rounds: int = 1000
    """How many acquires in a row the test of token order makes."""
    latency: float = 0.0
    """Seconds to add to every operation, as for a distant store."""
    count_files: bool = True
    """Whether file descriptors that are left open after ``close`` are counted as leaks."""

    restart: Callable[[], None] | None = None
    """Restarts the store, which keeps what it acknowledged."""
    wipe: Callable[[], None] | None = None
    """Deletes everything in the store, as if it were new."""
    step_clock: Callable[[float], None] | None = None
    """Steps the wall clock that takes part in tokens (the client's or the server's); undone by ``step_clock(0)``."""
    age: Callable[[str, str], None] | None = None
    """Makes the record of ``(namespace, name)`` look free for longer than records are kept, so that ``tidy`` is due."""
    leftovers: Callable[[], Sequence[str]] | None = None
    """Lists what else a closed ``Locks`` must not leave behind: files, keys, sessions."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Tests that do not apply, by name, each with the reason that the run shows."""

    def connect(self, side: str, **options: Any) -> Any:
        """A ``Locks`` of this store, for threads or asyncio. Does no I/O."""
        target = self.client(side) if self.client is not None else self.url
        return open_locks(target, self.opener, side, **options)


def open_locks(target: Any, opener: str | None, side: str, **options: Any) -> Any:
    """As ``connect``, also for a store that ``connect`` does not know."""
    if opener is None:
        return connect(target, **options) if side == THREADS else aio.connect(target, **options)
    module, _, function = opener.partition(":")
    namespace = options.pop("namespace", "")
    opened: Opened = getattr(import_module(module), function)(target, namespace)
    own = {key: options.pop(key, None) for key in ("owner", "kinds")}
    if side == THREADS:
        return Locks(ThreadRegistry(opened.store, opened.threads(), namespace=namespace, defaults=options, **own))
    return aio.Locks(TaskRegistry(opened.store, opened.tasks(), namespace=namespace, defaults=options, **own))
