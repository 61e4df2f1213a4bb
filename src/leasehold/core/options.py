"""The options of a lock, checked when the lock is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from os import urandom
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from . import checks, timing
from .protocol import SECOND, Ask, Store
from .timing import Duration

_DEFAULTS: Mapping[str, Any] = {
    "ttl": timing.DEFAULT_TTL,
    "timeout": None,
    "poll": (0.01, 0.8),
    "backoff": "adaptive",
}


LockName: TypeAlias = str | Callable[..., str]
"""A name; or a function that makes the name of each decorated call from its arguments."""

IfBusy: TypeAlias = Literal["wait", "skip", "raise"]
Backoff: TypeAlias = Literal["adaptive", "random"]
OnUnavailable: TypeAlias = Literal["raise", "skip"]


class TermOptions(TypedDict, total=False):
    """The options of one term of a lease."""

    ttl: Duration | None
    renew_every: Duration | None
    drift: Duration | None
    max_renew_failures: int | None


class KindOptions(TermOptions, total=False):
    """The options of ``once`` and ``election`` that are also options of ``lock``."""

    kind: str
    data: Any


class ConnectOptions(TermOptions, total=False):
    """The options of ``lock`` that ``connect`` accepts as defaults."""

    timeout: Duration | None
    renew: bool | None
    max_hold: Duration | None
    min_hold: Duration | None
    beat_every: Duration | None
    poll: tuple[Duration, Duration] | None
    backoff: Backoff | None


class CommonOptions(KindOptions, ConnectOptions, total=False):
    """The options of ``lock`` that are the same for threads and tasks. ``LockOptions`` of each adds ``on_lost``."""

    on_unavailable: OnUnavailable
    fair: bool | None


KIND_OPTIONS = tuple(KindOptions.__annotations__)
CONNECT_OPTIONS = tuple(ConnectOptions.__annotations__)
LOCK_OPTIONS = (*CommonOptions.__annotations__, "on_lost")


MEMBER = 24
"""So many digits of the attempt of a group's member stay when its data is changed: they say that it is the same one."""


def was_updated(attempt: str) -> bool:
    """Whether a group's member with this attempt has changed its data since it joined."""
    return attempt[-1] != "0"


class Spec(NamedTuple):
    """The checked options of a lock."""

    name: str
    kind: str
    data: Any
    data_text: str | None
    timing: timing.Timing
    timeout: float | None
    on_lost: Callable[..., object] | None
    at_loss: str
    """What a loss does to the block of the lease: "cancel", "raise" or "log"."""
    if_busy: str
    skip_unavailable: bool
    fair: bool
    poll: tuple[float, float]
    backoff: str
    shape: str = "lock"
    limit: int = 1
    weight: int = 1
    heir: tuple[str, int] | None = None
    """Attempt and token of the permit to take over. Such an acquire never waits."""
    replaces: bool = False
    """Whether that permit is a lease of this very ``Locks``: a member of a group with other data is still the same one,
    while a membership that another process accepts is a new member."""
    name_of: Callable[..., str] | None = None
    """Makes the name of each decorated call from its arguments. Nothing else can use such a lock."""

    def check_named(self) -> None:
        """Raise TypeError if there is a name only for decorated calls."""
        if self.name_of is not None:
            raise TypeError(
                f"{self.name} makes the name of this lock from a call's arguments, so the lock can only decorate "
                "functions: write @locks.lock(…), or give lock() a str"
            )

    def is_taken(self, holdings: Sized) -> bool:
        """Whether the name is locked, given all its live holders. A semaphore is locked if no permit is free."""
        return len(holdings) >= (self.limit if self.shape == "semaphore" else 1)

    def ask(self, owner: str, queue: bool) -> Ask:
        """The request of one acquire, with a new attempt id."""
        self.check_named()
        timing = self.timing
        attempt = urandom(16).hex()
        if self.shape == "group":
            same = self.heir[0][:MEMBER] if self.heir is not None and self.replaces else None
            attempt = attempt[:-1] + "0" if same is None else same + attempt[MEMBER:-1] + "1"
        return Ask(
            name=self.name,
            attempt=attempt,
            owner=owner,
            kind=self.kind,
            data=self.data_text,
            ttl=int(timing.ttl * SECOND),
            rest=int(timing.min_hold * SECOND),
            shape=self.shape,
            limit=self.limit,
            weight=self.weight,
            fair=self.fair,
            queue=queue,
            kept=timing.kept,
            heir=self.heir,
        )


def make_spec(
    name: str,
    *,
    store: Store,
    kinds: Mapping[str, timing.Preset],
    defaults: Mapping[str, Any],
    can_cancel: bool,
    kind: str = "lock",
    data: Any = None,
    on_lost: Any = None,
    if_busy: str = "wait",
    on_unavailable: str = "raise",
    fair: bool | None = None,
    **options: Any,
) -> Spec:
    """Check the options of a lock. For one that is None, the kind's preset counts, else ``connect``, else the default.
    Raises ValueError or TypeError."""
    name = checks.name(name)
    kind = checks.text(kind, "kind", checks.MAX_LABEL)
    at_loss = _at_loss(on_lost, can_cancel)
    if if_busy not in ("wait", "skip", "raise"):
        raise ValueError(f'if_busy must be "wait", "skip" or "raise", not {if_busy!r}')
    if on_unavailable not in ("raise", "skip"):
        raise ValueError(f'on_unavailable must be "raise" or "skip", not {on_unavailable!r}')
    if fair is not None:
        checks.flag(fair, "fair")
    if fair and not store.fair:
        raise ValueError(f"{store.scheme} does not support fair=True: it cannot serve waiters in order; leave fair out")
    merged = _merged(defaults, kinds.get(kind), options)
    timeout, poll, backoff = merged.pop("timeout"), merged.pop("poll"), merged.pop("backoff")
    if if_busy != "wait":
        timeout = options.get("timeout")  # connect's timeout is for locks that wait
        timeout = 0 if timeout is None else timeout
    return Spec(
        name=name,
        kind=kind,
        data=data,
        data_text=checks.data_text(data),
        timing=timing.make_timing(**merged),
        timeout=None if timeout is None else timing.patience(timeout),
        on_lost=None if isinstance(on_lost, str) else on_lost,
        at_loss=at_loss,
        if_busy=if_busy,
        skip_unavailable=on_unavailable == "skip",
        fair=fair is not False,
        poll=timing.check_poll(poll, backoff),
        backoff=backoff,
    )


def _at_loss(on_lost: object, can_cancel: bool) -> str:
    """What a loss does to the block. A callable is called besides the default."""
    if on_lost == "cancel" and not can_cancel:
        raise ValueError('on_lost="cancel" needs leasehold.aio: a thread cannot be cancelled; use "raise"')
    if isinstance(on_lost, str):
        if on_lost not in ("cancel", "raise", "log"):
            raise ValueError(f'on_lost must be "cancel", "raise", "log", a callable or None, not {on_lost!r}')
        return on_lost
    if on_lost is not None:
        checks.callback(on_lost, "on_lost", can_cancel)
    return "cancel" if can_cancel else "raise"


def _merged(defaults: Mapping[str, Any], preset: timing.Preset | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of timing: those of the lock before its kind's preset, before ``connect``'s, before the defaults."""
    given = {key: value for key, value in options.items() if value is not None}
    merged = {**_DEFAULTS, **defaults}
    if preset is not None:
        merged.update(ttl=preset.ttl, share=preset.renew_every / preset.ttl)
    if preset is not None or "ttl" in given:
        merged.pop("renew_every", None)  # connect's renew_every belongs to connect's ttl
    merged.update(given)
    return merged
