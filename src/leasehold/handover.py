"""What ``transfer`` gives and ``accept`` takes: everything that another process needs to take a lease over."""

from __future__ import annotations

from .lease import BaseLease
from .spec import Spec
from .typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core import Core

FORMAT = 1
PREFIX = "leasehold-"


def promise(lease: BaseLease) -> str:
    """The text. The lease's own trust has ended before there is one; the end of its block leaves it to the other."""
    import base64
    import json

    core, spec, claim = lease._core, lease._spec, lease._claim
    lease._offer()
    fields = (core.namespace, claim.name, claim.attempt, claim.token, spec.shape, spec.limit, spec.weight)
    rest = (lease.kind, lease.ttl, spec.data)
    packed = json.dumps((FORMAT, *fields, *rest), separators=(",", ":")).encode()
    return PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def check(lease: BaseLease) -> None:
    lease._core.need("heir")
    lease.check()


def heir_spec(core: Core, text: str, options: dict[str, Any]) -> Spec:
    """What to ask for with such a text. ``options`` are those of ``lock``."""
    import base64
    import json

    core.need("heir")
    if not isinstance(text, str):
        raise TypeError(f"what transfer() gave is a str, not {type(text).__name__}")
    try:
        packed = text.removeprefix(PREFIX)
        format, namespace, name, attempt, token, shape, limit, weight, kind, ttl, data = json.loads(
            base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
        )
        if not all(isinstance(each, str) for each in (name, attempt, shape)):
            raise TypeError("a field is missing")
        if not all(isinstance(each, int) for each in (token, limit, weight)):
            raise TypeError("a number is missing")
    except (ValueError, TypeError) as error:
        raise ValueError("this is not what transfer() gave, or not all of it") from error
    if format != FORMAT:
        raise ValueError(f"this was made by another version of leasehold (format {format}, not {FORMAT})")
    if namespace != core.namespace:
        raise ValueError(f"the lease is of namespace {namespace!r}, and this Locks is of {core.namespace!r}")
    given = {"kind": kind, "ttl": ttl, "data": data, **options}
    spec = core.lock_spec("accept", name, given)
    return spec._replace(shape=shape, limit=limit, weight=weight, heir=(attempt, token))
