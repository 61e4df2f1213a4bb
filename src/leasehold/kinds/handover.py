"""The text that ``transfer`` returns and ``accept`` takes: all that another process needs to take a lease over."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from ..core import checks, timing
from ..core.lease import BaseLease, own_state_of, registry_of
from ..core.options import Spec
from ..core.registry import READERS, Registry
from ..core.release import offer
from ..stores.common import forms

FORMAT = 1
PREFIX = "leasehold-"


def promise(lease: BaseLease) -> str:
    """The text of ``transfer``. Before the text exists, the lease stops being trusted. The end of its block will not
    release it."""
    state = own_state_of(lease)
    spec, claim = state.spec, state.claim
    offer(state)
    fields = (registry_of(lease).namespace, claim.name, claim.attempt, claim.token, spec.shape, spec.limit, spec.weight)
    rest = (lease.kind, lease.ttl, spec.data)
    packed = json.dumps((FORMAT, *fields, *rest), separators=(",", ":")).encode()
    return PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def check(lease: BaseLease) -> None:
    """Raise ValueError if the store cannot hand leases over, LeaseLost if the lease can no longer be trusted."""
    registry_of(lease).need("heir")
    lease.check()


def heir_spec(core: Registry, text: str, options: Mapping[str, Any]) -> Spec:
    """The options of the acquire that takes the lease over. ``options`` are those of ``lock``. Raises ValueError or
    TypeError."""
    core.need("heir")
    if not isinstance(text, str):
        raise TypeError(f"accept() takes the str that transfer() returned, not {type(text).__name__}")
    try:
        packed = text.removeprefix(PREFIX)
        format, namespace, name, attempt, token, shape, limit, weight, kind, ttl, data = json.loads(
            base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError("the text given to accept() is not what transfer() returned, or not all of it") from error
    if format != FORMAT:
        raise ValueError(
            f"the text given to accept() has format {format}, not {FORMAT}: use the same version of leasehold for both"
        )
    if namespace != core.namespace:
        raise ValueError(f"the lease is in namespace {namespace!r}, but this Locks is in {core.namespace!r}")
    try:
        _check(name, attempt, token, shape, limit, weight, kind, ttl, data)
    except (ValueError, TypeError) as error:
        raise ValueError(f"the text given to accept() is not what transfer() returned: {error}") from error
    given = {"kind": kind, "ttl": ttl, "data": data, **options}
    spec = core.lock_spec("accept", name, given)
    return spec._replace(shape=shape, limit=limit, weight=weight, heir=(attempt, token))


def _check(
    name: object,
    attempt: object,
    token: object,
    shape: object,
    limit: object,
    weight: object,
    kind: object,
    ttl: object,
    data: object,
) -> None:
    """Check every field: anybody may have written the text, and the store compares and counts with its values."""
    checks.name(name)
    if not isinstance(attempt, str) or not re.fullmatch("[0-9a-f]{32}", attempt):
        raise ValueError("attempt is not 32 hexadecimal digits")
    forms.number(token, "token", 0, forms.MOST - 1)
    limits = {"lock": range(1, 2), "semaphore": range(1, checks.MAX_PERMITS + 1), "rwlock": range(READERS, READERS + 1)}
    if not isinstance(shape, str) or shape not in limits:
        raise ValueError(f"shape is not one of {', '.join(limits)}")
    most = forms.number(limit, "limit", limits[shape].start, limits[shape].stop - 1)
    forms.number(weight, "weight", 1, most)
    checks.text(kind, "kind", checks.MAX_LABEL)
    if isinstance(ttl, str):  # a duration for callers, but not what transfer() writes
        raise TypeError("ttl is a str")
    timing.seconds(ttl, "ttl")
    checks.data_text(data)
