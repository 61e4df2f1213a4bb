"""From a URL (or the user's own client) to a store and its driver. Imports a store only when it is asked for."""

from __future__ import annotations

import os

from . import checks
from .typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .lock import Locks
    from .protocol import Opened

ENVIRONMENT = "LEASEHOLD_URL"

_REDIS = (
    *(f"{base}{how}" for base in ("redis", "rediss", "valkey", "valkeys") for how in ("", "+sentinel", "+cluster")),
    *("unix", "redis+unix", "valkey+unix"),
)
# scheme: (module of leasehold.stores, extra that brings its driver). A module has open_url(url, namespace) -> Opened.
_STORES: Mapping[str, tuple[str, str | None]] = {
    "memory": ("memory", None),
    "sqlite": ("sqlite", None),
    **dict.fromkeys(_REDIS, ("redis", "redis")),
    "redlock": ("redlock", "redis"),
    "mongodb": ("mongo", "mongodb"),
    "mongodb+srv": ("mongo", "mongodb"),
    "postgresql": ("postgresql", "postgresql"),
    "mysql": ("mysql", "mysql"),
    "mariadb": ("mysql", "mysql"),
}
# package of a client's class: module of leasehold.stores. It has open_client(client, namespace) -> Opened.
_CLIENTS: Mapping[str, str] = {"redis": "redis", "pymongo": "mongo", "sqlalchemy": "sql_engine"}
_LATER = ("etcd", "zookeeper")

_TIMING = (
    *("ttl", "timeout", "renew", "renew_every", "max_hold", "min_hold", "beat_every"),
    *("poll", "backoff", "drift", "max_renew_failures"),
)


def connect(
    url: object = None,
    *,
    namespace: str = "",
    owner: str | None = None,
    kinds: Mapping[str, object] | None = None,
    **timing: Any,
) -> Locks:
    """Leases of the store at ``url``: $LEASEHOLD_URL, else a SQLite file in the user's state folder.

    Does no I/O; the first operation does. ``timing`` are defaults for the options of ``lock`` of those names.
    """
    from .lock import Locks
    from .threads import ThreadCore

    opened, options = resolve(url, namespace, timing)
    core = ThreadCore(opened.store, opened.threads(), namespace=namespace, owner=owner, kinds=kinds, defaults=options)
    return Locks(core)


def resolve(url: object, namespace: str, timing: Mapping[str, Any]) -> tuple[Opened, dict[str, Any]]:
    """Check what both ``connect`` functions take; find the store."""
    unknown = sorted(set(timing) - set(_TIMING))
    if unknown:
        raise TypeError(f"connect() has no option {unknown[0]!r}; for timing it takes {', '.join(_TIMING)}")
    checks.text(namespace, "namespace", checks.MAX_LABEL, shortest=0)
    return find(url, namespace), {key: value for key, value in timing.items() if value is not None}


def find(url: object, namespace: str) -> Opened:
    """The store that a URL names."""
    if url is None:
        url = os.environ.get(ENVIRONMENT)
        if not url:
            from .stores.sqlite import default_url

            url = default_url()
    if not isinstance(url, str):
        for base in type(url).__mro__:
            if (package := base.__module__.partition(".")[0]) in _CLIENTS:
                store = __import__(f"leasehold.stores.{_CLIENTS[package]}", fromlist=["open_client"])
                opened: Opened = store.open_client(url, namespace)
                return opened
        raise TypeError(f"connect() takes a URL or a client that leasehold knows, not {type(url).__name__}")
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower()
    if not separator or not scheme.replace("+", "").isalnum():
        raise ValueError("a store's URL starts with its scheme, such as sqlite:///leases.db or redis://localhost")
    if scheme.partition("+")[0] in _LATER:
        raise ValueError(f"{scheme}:// is not supported by this version of leasehold yet")
    if scheme not in _STORES:
        raise ValueError(f"unknown scheme {scheme!r} in the store's URL; known are {', '.join(_STORES)}")
    module, extra = _STORES[scheme]
    try:
        # (importlib would do the same, and takes longer to load than some of the stores)
        opened = __import__(f"leasehold.stores.{module}", fromlist=["open_url"]).open_url(url, namespace)
    except ModuleNotFoundError as error:
        if extra is None:
            raise
        raise ModuleNotFoundError(
            f"{scheme}:// needs the module {error.name}, which is not installed: pip install 'leasehold[{extra}]'",
            name=error.name,
        ) from error
    return opened
