"""``leasehold doctor`` and ``leasehold init`` as functions, for programs that set up or check a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .core import checks
from .stores.common.findings import OK, Finding
from .stores.urls import call, given_or_default, usual
from .threads.locks import connect

# scheme without "+…": module of leasehold.stores with doctor(url) -> list[Finding]
_DOCTORS: Mapping[str, str] = {
    "sqlite": "sqlite.admin",
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys", "unix", "redlock"), "redis.doctor"),
    "mongodb": "mongodb.admin",
    **dict.fromkeys(("postgresql", "mysql", "mariadb"), "sql.doctor"),
    "etcd": "etcd.doctor",
    "zookeeper": "zookeeper.doctor",
}
_BY_NAMESPACE = ("redis.doctor", "etcd.doctor", "zookeeper.doctor")
"""Stores that can restrict a user to one namespace. Their function is ``doctor(url, namespace)``."""
# the same for init(url, dry_run=…) -> list[Finding], for stores that need tables, indexes or collections
_MAKERS: Mapping[str, str] = {
    "mongodb": "mongodb.admin",
    **dict.fromkeys(("postgresql", "mysql", "mariadb"), "sql.doctor"),
}

_LOCK_TABLES = ("mysql", "mariadb")
"""Where old code may have a table of locks that become leases."""


def doctor(url: str | None = None, *, namespace: str = "") -> list[Finding]:
    """Check whether a live store is fit for leases. Each finding says what was found and how to fix it.

    Changes nothing, except that on some stores it acquires and releases a name of its own in the namespace.

    Args:
        url: the store's URL. Default: as for :func:`leasehold.connect`.
        namespace: the namespace to check, where the store can restrict a user to one. Default: "".

    Raises:
        ValueError: the URL is wrong, or is ``memory://``.
        StoreError: the store cannot be reached.

    Example::

        for finding in admin.doctor("sqlite:///leases.db"):
            print(*finding)
    """
    checks.text(namespace, "namespace", checks.MAX_LABEL, shortest=0)
    url, scheme, base = _resolve(url)
    if base not in _DOCTORS:
        raise ValueError(f"{scheme}:// exists only inside one process: doctor cannot check it from another")
    module = _DOCTORS[base]
    where = (namespace,) if module in _BY_NAMESPACE else ()
    findings: list[Finding] = call(scheme, module, "doctor", url, *where)
    return findings


def init(
    url: str | None = None,
    *,
    dry_run: bool = False,
    from_legacy: bool = False,
    legacy: Sequence[str] = (),
    namespace: str = "",
    legacy_zone: str | None = None,
) -> list[Finding]:
    """Create the tables, indexes or collections that the store needs, so that other users need no right to create them.
    Idempotent. Each finding of the result says what was created, or would be.

    Args:
        url: the store's URL. Default: as for :func:`leasehold.connect`.
        dry_run: only report what would be done. Default: False.
        from_legacy: deal with the locks of the code that leasehold replaces. MongoDB: first remove the expired ones.
            MySQL, MariaDB: close the old table; its locks become leases of their owners. Default: False.
        legacy: further collections or tables of such locks. Default: none.
        namespace: the namespace of these leases (MySQL, MariaDB). Default: "".
        legacy_zone: the time zone of DATETIME columns of the old table, such as "+02:00" (MySQL, MariaDB).
            Default: UTC, if the server's time zone is UTC; otherwise it is needed.

    Raises:
        ValueError: the URL is wrong, or the store does not have an option.
        StoreError: the store cannot be reached.

    Example::

        admin.init("sqlite:///leases.db")
    """
    url, scheme, base = _resolve(url)
    if legacy and not from_legacy:
        raise ValueError("legacy collections and tables can only be given with from_legacy")
    if from_legacy and base not in ("mongodb", *_LOCK_TABLES):
        raise ValueError(f"from_legacy works only with MongoDB, MySQL and MariaDB, not {scheme}://")
    takes_over = from_legacy and base in _LOCK_TABLES
    checks.text(namespace, "namespace", checks.MAX_LABEL, shortest=0)
    if not takes_over and (namespace or legacy_zone is not None):
        raise ValueError("init takes a namespace and a legacy_zone only with from_legacy on MySQL and MariaDB")
    if takes_over:
        call(scheme, "mysql.legacy", "check", url, legacy, legacy_zone)
    if base in _MAKERS:
        old = {"from_legacy": True, "legacy": legacy} if from_legacy and not takes_over else {}
        findings: list[Finding] = call(scheme, _MAKERS[base], "init", url, dry_run=dry_run, **old)
        if takes_over:
            how = {"tables": legacy, "zone": legacy_zone, "dry_run": dry_run}
            findings += call(scheme, "mysql.legacy", "import_locks", url, namespace, **how)
        return findings
    if not dry_run:
        with connect(url) as locks:
            locks.inspect("init")  # creates the file of the embedded store; only connects to the others
    return [Finding(OK, scheme, "nothing to create")]


def schema_sql(url: str | None = None) -> str:
    """The SQL that :func:`init` would run, for a migration of the user's own.

    Args:
        url: the store's URL. Default: as for :func:`leasehold.connect`.

    Raises:
        ValueError: the store needs no tables.

    Example::

        print(admin.schema_sql("postgresql://db/app"))
    """
    url, scheme, base = _resolve(url)
    if base not in ("postgresql", "mysql", "mariadb"):
        raise ValueError(f"{scheme}:// needs no SQL migration: only PostgreSQL, MySQL and MariaDB do")
    sql: str = call(scheme, "sql.doctor", "schema_sql", url)
    return sql


def _resolve(url: str | None) -> tuple[str, str, str]:
    """The URL, its scheme, and the scheme without "+…"."""
    given = given_or_default(url)
    if not isinstance(given, str):
        raise TypeError(f"url must be a str, not {type(given).__name__}")
    given = usual(given)
    scheme = given.partition("://")[0]
    return given, scheme, scheme.partition("+")[0]
