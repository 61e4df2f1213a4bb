"""The options of a lock, checked once: what the engine works from."""

from __future__ import annotations

import os
from collections.abc import Mapping

from . import checks, policy
from .protocol import SECOND, Ask, Store
from .typed import Any, NamedTuple

_DEFAULTS: Mapping[str, Any] = {
    "ttl": policy.DEFAULT_TTL,
    "timeout": None,
    "poll": (0.01, 0.8),
    "backoff": "adaptive",
}


class Spec(NamedTuple):
    """The checked options of a lock."""

    name: str
    kind: str
    data: Any
    data_text: str | None
    timing: policy.Timing
    timeout: float | None
    on_lost: Any
    skip_unavailable: bool
    fair: bool
    poll: tuple[float, float]
    backoff: str
    shape: str = "lock"
    limit: int = 1
    weight: int = 1

    def ask(self, owner: str, queue: bool) -> Ask:
        return Ask(
            self.name,
            os.urandom(16).hex(),
            owner,
            self.kind,
            self.data_text,
            int(self.timing.ttl * SECOND),
            int(self.timing.min_hold * SECOND),
            self.shape,
            self.limit,
            self.weight,
            self.fair,
            queue,
        )


def make_spec(
    name: str,
    *,
    store: Store,
    kinds: Mapping[str, policy.Preset],
    defaults: Mapping[str, Any],
    can_cancel: bool,
    kind: str = "lock",
    data: Any = None,
    on_lost: Any = None,
    on_unavailable: str = "raise",
    fair: bool | None = None,
    **options: Any,
) -> Spec:
    """Check the options of a lock. One that is None comes from its kind, else ``connect``, else the default."""
    name = checks.name(name)
    kind = checks.text(kind, "kind", checks.MAX_LABEL)
    if on_lost == "cancel" and not can_cancel:
        raise ValueError('on_lost="cancel" needs leasehold.aio: a thread cannot be cancelled; use "raise"')
    if not (on_lost is None or on_lost in ("cancel", "raise") or callable(on_lost)):
        raise ValueError(f'on_lost must be "cancel", "raise", a callable or None, not {on_lost!r}')
    if on_unavailable not in ("raise", "skip"):
        raise ValueError(f'on_unavailable must be "raise" or "skip", not {on_unavailable!r}')
    if fair and not store.fair:
        raise ValueError(f"fair=True: {store.scheme} cannot serve waiters in order; leave fair out")
    given = {key: value for key, value in options.items() if value is not None}
    merged = {**_DEFAULTS, **defaults}
    preset = kinds.get(kind)
    if preset is not None:
        merged.update(ttl=preset.ttl, share=preset.renew_every / preset.ttl)
    if preset is not None or "ttl" in given:
        merged.pop("renew_every", None)  # it was meant for another ttl
    merged.update(given)
    timeout, poll, backoff = merged.pop("timeout"), merged.pop("poll"), merged.pop("backoff")
    return Spec(
        name,
        kind,
        data,
        checks.data_text(data),
        policy.make_timing(**merged),
        None if timeout is None else policy.seconds(timeout, "timeout", zero=True),
        on_lost,
        on_unavailable == "skip",
        fair is not False,
        policy.check_poll(poll, backoff),
        backoff,
    )
