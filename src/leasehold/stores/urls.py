"""From a URL's scheme, or the user's own client, to the store and its drivers. Imports only the store that is used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..contract.habits import unknown_option
from ..core import checks
from ..core.options import CONNECT_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.protocol import Opened

ENVIRONMENT = "LEASEHOLD_URL"

_REDIS = (
    *(f"{base}{how}" for base in ("redis", "rediss", "valkey", "valkeys") for how in ("", "+sentinel", "+cluster")),
    *("unix", "redis+unix", "valkey+unix"),
)
# scheme: (module of leasehold.stores, extra that installs its driver). Each module has
# open_url(url, namespace) -> Opened.
_STORES: Mapping[str, tuple[str, str | None]] = {
    "memory": ("memory", None),
    "sqlite": ("sqlite", None),
    **dict.fromkeys(_REDIS, ("redis", "redis")),
    "redlock": ("redlock", "redis"),
    "mongodb": ("mongodb", "mongodb"),
    "mongodb+srv": ("mongodb", "mongodb"),
    "postgresql": ("postgresql", "postgresql"),
    "mysql": ("mysql", "mysql"),
    "mariadb": ("mysql", "mysql"),
    "etcd": ("etcd", "etcd"),
    "zookeeper": ("zookeeper", "zookeeper"),
}
_ALIASES: Mapping[str, str] = {"postgres": "postgresql"}
_SQL = ("sqlite", "postgresql", "mysql", "mariadb")
"""SQLAlchemy names a driver after these, as in ``postgresql+asyncpg``. It is ignored: leasehold has its own."""
# package of a client's class: module of leasehold.stores. Each module has open_client(client, namespace) -> Opened.
_CLIENTS: Mapping[str, str] = {
    "redis": "redis",
    "pymongo": "mongodb",
    "sqlalchemy": "sqlalchemy",
    "psycopg_pool": "postgresql.pool",
    "aiomysql": "mysql.pool",
    "grpc": "etcd",
    "aetcd": "etcd",
    "etcd3": "etcd",
    "kazoo": "zookeeper",
}


def resolve(url: object, namespace: str, timing: Mapping[str, Any]) -> tuple[Opened, dict[str, Any]]:
    """Check the arguments of ``connect`` (threads and asyncio) and find the store."""
    unknown = sorted(set(timing) - set(CONNECT_OPTIONS))
    if unknown:
        otherwise = f"of the options of lock() it accepts {', '.join(CONNECT_OPTIONS)}"
        raise unknown_option("connect", unknown[0], CONNECT_OPTIONS, otherwise)
    checks.text(namespace, "namespace", checks.MAX_LABEL, shortest=0)
    return find_store(url, namespace), {key: value for key, value in timing.items() if value is not None}


def given_or_default(url: object) -> object:
    """``url`` if given, else $LEASEHOLD_URL, else the URL of the embedded default."""
    if url is None:
        url = os.environ.get(ENVIRONMENT)
        if not url:
            from .sqlite.file import default_url

            url = default_url()
    return url


def usual(url: str) -> str:
    """The URL with its scheme as leasehold writes it: ``postgresql`` for ``postgres`` and ``PostgreSQL+asyncpg``.
    Raises ValueError if the scheme is unknown, or the URL cannot be parsed."""
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or not scheme.translate({ord(mark): None for mark in "+-._"}).isalnum():
        raise ValueError("the store's URL has no scheme: write sqlite:///leases.db or redis://localhost, for example")
    base = scheme.partition("+")[0]
    base = _ALIASES.get(base, base)
    if base in _SQL:
        scheme = base
    if scheme not in _STORES:
        known = ", ".join(_STORES)
        raise ValueError(f"unknown scheme {scheme!r} in the store's URL{_meant(scheme)}: use one of {known}")
    if _STORES[scheme][1] is not None:
        authority, path, query = _parts(url)
        names = [option.partition("=")[0] for option in query.split("&")]
        if (authority and "@" in path) or any("@" in name for name in names):
            raise ValueError(_ENCODE)
    return f"{scheme}://{rest}"


def _meant(scheme: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(scheme, _STORES, 1)
    return f" (did you mean {close[0]}?)" if close else ""


_ENCODE = (
    "cannot parse the store's URL: percent-encode the user name and the password (/ is %2F, ? is %3F, @ is %40), and "
    "any @ that comes after them"
)


def _parts(url: str) -> tuple[str, str, str]:
    """User, password and hosts; the path; the options. Nothing is decoded."""
    rest, _, query = url.partition("://")[2].partition("?")
    authority, slash, path = rest.partition("/")
    return authority, slash + path, query


def find_store(url: object, namespace: str) -> Opened:
    """Open the store that a URL's scheme names, or that a client of the user's belongs to."""
    url = given_or_default(url)
    if not isinstance(url, str):
        package = _package(url)
        if package is None and _package(getattr(url, "channel", None)) == "grpc":
            package = "grpc"  # a client of etcd built on grpc
        if package is not None:
            store = __import__(f"leasehold.stores.{_CLIENTS[package]}", fromlist=["open_client"])
            opened: Opened = store.open_client(url, namespace)
            return opened
        known = f"a client ({', '.join(_CLIENTS)}, or one with a grpc .channel)"
        raise TypeError(f"connect() takes a URL or {known}, not {type(url).__name__}")
    url = usual(url)
    scheme = url.partition("://")[0]
    opened = call(scheme, _STORES[scheme][0], "open_url", url, namespace)
    return opened  # noqa: RET504 (typed above)


def _package(client: object) -> str | None:
    """The package of the client's class, or of one of its base classes, if leasehold knows it."""
    packages = (base.__module__.partition(".")[0] for base in type(client).__mro__)
    return next((package for package in packages if package in _CLIENTS), None)


def call(scheme: str, module: str, function: str, url: str, *args: Any, **named: Any) -> Any:
    """Call a function of a module of ``leasehold.stores``. If its driver is missing, the error names the extra.

    A ``/`` or ``?`` in a password that is not encoded ends the password early: its rest is then parsed as path or
    options, up to an ``@``. While there is such an ``@``, a message that may quote the password is replaced."""
    try:
        # (importlib would do the same, but takes longer to load than some of the stores)
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
            f"{scheme}:// needs the module {error.name}, which is not installed: run pip install 'leasehold[{extra}]'",
            name=error.name,
        ) from error
