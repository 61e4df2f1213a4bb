"""``mysql://`` and ``mariadb://``: leases in a table, one statement each. Drivers: PyMySQL, aiomysql."""

from __future__ import annotations

from typing import Any

from ..protocol import Opened, TaskDriver, ThreadDriver
from .mysql_sql import MySQL
from .sql import SqlStore
from .sql_session import Broken, Refused, Session
from .sql_url import Place, read_url, refuse, without

_OPTIONS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity", "bind_address")


def open_url(url: str, namespace: str) -> Opened:
    import pymysql  # noqa: F401  (named in the error if it is missing)

    scheme = url.partition("://")[0].lower()
    place = read_url(url)
    refuse(place.options, _OPTIONS, scheme)
    if place.database is None and "." not in place.table:
        raise ValueError(f"{scheme}: the store's URL names no database: {scheme}://user@host/database")

    def threads() -> ThreadDriver:
        from .mysql_threads import make

        return make(Session(MySQL(place.table, scheme), namespace), place)

    def tasks() -> TaskDriver:
        import aiomysql  # noqa: F401

        from .mysql_tasks import make

        return make(Session(MySQL(place.table, scheme), namespace), place)

    return Opened(SqlStore(scheme), threads, tasks)


def arguments(place: Place, limit: float) -> dict[str, Any]:
    """How both drivers connect."""
    found: dict[str, Any] = {
        "host": place.host or "127.0.0.1",
        "port": place.port or 3306,
        "user": place.user,
        "password": place.password or "",
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": max(0.1, limit),
        # A statement that we have given up on must not wait for a row for a minute and then still be done.
        "init_command": "SET SESSION innodb_lock_wait_timeout = 5",
    }
    if place.database is not None:
        found["database"] = place.database
    return found


def failure(error: Exception, password: str | None) -> Exception:
    """The server's refusal, unless the connection went with it (client errors, and the server going away)."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    message = without(error.args[1] if len(error.args) > 1 else error, password)
    if code == 0 or 2000 <= code < 3000 or code in (1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 4031, 1927):
        return Broken(message)
    return Refused(code, message)


def refusal(error: Exception, session: Session, password: str | None) -> Exception:
    """Why there is no connection."""
    failed = failure(error, password)
    if isinstance(failed, Refused) and failed.code in (*session.dialect.LOGIN, *session.dialect.DENIED):
        return session.dialect.error(1045, str(failed))
    return Broken(str(failed))
