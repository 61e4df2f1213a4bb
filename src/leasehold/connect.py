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
    "sqlite": ("sqlite.store", None),
    **dict.fromkeys(_REDIS, ("redis", "redis")),
    "redlock": ("redlock.store", "redis"),
    "mongodb": ("mongodb.store", "mongodb"),
    "mongodb+srv": ("mongodb.store", "mongodb"),
    "postgresql": ("postgresql", "postgresql"),
    "mysql": ("mysql", "mysql"),
    "mariadb": ("mysql", "mysql"),
    "etcd": ("etcd", "etcd"),
    "zookeeper": ("zookeeper", "zookeeper"),
}
# package of a client's class: module of leasehold.stores. It has open_client(client, namespace) -> Opened.
_CLIENTS: Mapping[str, str] = {
    "redis": "redis",
    "pymongo": "mongodb.store",
    "sqlalchemy": "sql.engine",
    "psycopg_pool": "postgresql.pool",
    "aiomysql": "mysql.pool",
    "grpc": "etcd",
    "aetcd": "etcd",
    "etcd3": "etcd",
    "kazoo": "zookeeper",
}

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


def given_or_default(url: object) -> object:
    """What is connected to: ``url``, else $LEASEHOLD_URL, else the embedded default."""
    if url is None:
        url = os.environ.get(ENVIRONMENT)
        if not url:
            from .stores.sqlite.store import default_url

            url = default_url()
    return url


def scheme_of(url: str) -> str:
    """The scheme of a store's URL. Raises ValueError for one that is not known."""
    scheme, separator, _ = url.partition("://")
    scheme = scheme.lower()
    if not separator or not scheme.replace("+", "").isalnum():
        raise ValueError("a store's URL starts with its scheme, such as sqlite:///leases.db or redis://localhost")
    if scheme not in _STORES:
        raise ValueError(f"unknown scheme {scheme!r} in the store's URL; known are {', '.join(_STORES)}")
    if _STORES[scheme][1] is not None:
        authority, path, query = _parts(url)
        names = [option.partition("=")[0] for option in query.split("&")]
        if (authority and "@" in path) or any("@" in name for name in names):
            raise ValueError(_ENCODE)
    return scheme


_ENCODE = (
    "the store's URL is not understood: a user name and a password must be percent-encoded (/ is %2F, ? is %3F, @ is "
    "%40), and so must an @ that comes after them"
)


def _parts(url: str) -> tuple[str, str, str]:
    """User, password and hosts; the path; the options: all of them as they are."""
    rest, _, query = url.partition("://")[2].partition("?")
    authority, slash, path = rest.partition("/")
    return authority, slash + path, query


def find(url: object, namespace: str) -> Opened:
    """The store that a URL names."""
    url = given_or_default(url)
    if not isinstance(url, str):
        package = _package(url)
        if package is None and _package(getattr(url, "channel", None)) == "grpc":
            package = "grpc"  # a client of etcd that is built on it
        if package is not None:
            store = __import__(f"leasehold.stores.{_CLIENTS[package]}", fromlist=["open_client"])
            opened: Opened = store.open_client(url, namespace)
            return opened
        known = f"a client that leasehold knows (of {', '.join(_CLIENTS)}, or one with a .channel of grpc)"
        raise TypeError(f"connect() takes a URL or {known}, not {type(url).__name__}")
    scheme = scheme_of(url)
    opened = call(scheme, _STORES[scheme][0], "open_url", url, namespace)
    return opened  # noqa: RET504 (typed above)


def _package(client: object) -> str | None:
    """Of those whose clients are known: the one that its class, or what that is made of, comes from."""
    packages = (base.__module__.partition(".")[0] for base in type(client).__mro__)
    return next((package for package in packages if package in _CLIENTS), None)


def call(scheme: str, module: str, function: str, url: str, *args: Any, **named: Any) -> Any:
    """Call a function of a module of ``leasehold.stores``; if a driver is missing, say which extra brings it.

    A ``/`` or ``?`` in a password ends what is read as one. What follows, up to the ``@``, is then part of something
    else, and wrong there: so while there is such an ``@``, a message that may quote it is not passed on."""
    try:
        # (importlib would do the same, and takes longer to load than some of the stores)
        found = getattr(__import__(f"leasehold.stores.{module}", fromlist=[function]), function)
        return found(url, *args, **named)
    except ValueError:
        _, path, query = _parts(url)
        if _STORES[scheme][1] is None or "@" not in path + query:
            raise
        raise ValueError(_ENCODE) from None
    except ModuleNotFoundError as error:
        extra = _STORES[scheme][1]
        if extra is None:
            raise
        raise ModuleNotFoundError(
            f"{scheme}:// needs the module {error.name}, which is not installed: pip install 'leasehold[{extra}]'",
            name=error.name,
        ) from error
