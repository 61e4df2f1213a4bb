"""For those who run a store: what ``leasehold doctor`` and ``leasehold init`` do, for programs too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import checks
from .connect import call, connect, given_or_default, scheme_of
from .findings import OK, Finding

# scheme, up to its "+": module of leasehold.stores with doctor(url) -> list[Finding]
_DOCTORS: Mapping[str, str] = {
    "sqlite": "sqlite.admin",
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys", "unix", "redlock"), "redis.doctor"),
    "mongodb": "mongodb.admin",
    **dict.fromkeys(("postgresql", "mysql", "mariadb"), "sql.admin"),
    "etcd": "etcd.doctor",
    "zookeeper": "zookeeper.doctor",
}
_BY_NAMESPACE = ("redis.doctor", "etcd.doctor", "zookeeper.doctor")
"""Whose users may be allowed one namespace alone. These take it as ``doctor(url, namespace)``."""
# with init(url, dry_run=…) -> list[Finding], where there is something to make
_MAKERS: Mapping[str, str] = {
    "mongodb": "mongodb.admin",
    **dict.fromkeys(("postgresql", "mysql", "mariadb"), "sql.admin"),
}


def doctor(url: str | None = None, *, namespace: str = "") -> list[Finding]:
    """Look at a live store: what speaks for and against keeping leases there, and how to mend it. Changes nothing
    but, on some stores, a name of its own in the namespace, that is taken and given back."""
    checks.text(namespace, "namespace", checks.MAX_LABEL, shortest=0)
    url, scheme, base = _resolve(url)
    if base not in _DOCTORS:
        raise ValueError(f"{scheme}:// lives in its process alone: there is nothing to look at from here")
    module = _DOCTORS[base]
    where = (namespace,) if module in _BY_NAMESPACE else ()
    findings: list[Finding] = call(scheme, module, "doctor", url, *where)
    return findings


def init(
    url: str | None = None, *, dry_run: bool = False, from_legacy: bool = False, legacy: Sequence[str] = ()
) -> list[Finding]:
    """Make what the store needs (tables, indexes, collections), so that its users need no right to. Again is harmless.

    ``from_legacy`` (MongoDB) first sees off the records of the lock code that leasehold replaces, also from collections
    that ``legacy`` names beside the usual ones. ``dry_run`` only says what would be done.
    """
    url, scheme, base = _resolve(url)
    if legacy and not from_legacy:
        raise ValueError("legacy names collections for from_legacy")
    if from_legacy and base != "mongodb":
        raise ValueError(f"from_legacy is for MongoDB, where the old code keeps its locks; this is {scheme}://")
    if base in _MAKERS:
        old = {"from_legacy": True, "legacy": legacy} if from_legacy else {}
        findings: list[Finding] = call(scheme, _MAKERS[base], "init", url, dry_run=dry_run, **old)
        return findings
    if not dry_run:
        with connect(url) as locks:
            locks.inspect("init")  # the embedded store makes its file; the others are only reached
    return [Finding(OK, scheme, "there is nothing to prepare")]


def schema_sql(url: str | None = None) -> str:
    """The SQL that ``init`` would run, for those who run migrations themselves."""
    url, scheme, base = _resolve(url)
    if base not in ("postgresql", "mysql", "mariadb"):
        raise ValueError(f"{scheme}:// is no SQL store that needs a table made")
    sql: str = call(scheme, "sql.admin", "schema_sql", url)
    return sql


def _resolve(url: str | None) -> tuple[str, str, str]:
    """The URL, its scheme, and that without what follows "+"."""
    given = given_or_default(url)
    if not isinstance(given, str):
        raise TypeError(f"a store's URL is needed, not {type(given).__name__}")
    scheme = scheme_of(given)
    return given, scheme, scheme.partition("+")[0]
