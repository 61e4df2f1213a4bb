"""``mysql://`` and ``mariadb://``: leases in a table of MySQL or MariaDB. Drivers: PyMySQL, aiomysql.

**Stored**: one row per name, as ``stores/sql`` describes; namespace and name are bytes, so that no collation makes two
names one. **Clock**: the server's ``UTC_TIMESTAMP(6)``. **Wake-ups**: a connection per process sleeps in the server,
until KILL QUERY ends its sleep (:mod:`.listener`).

**To read next**: :mod:`.sql` (the statements), :mod:`.listener`, :mod:`.threads` and :mod:`.tasks` (connections),
:mod:`.pool` (an aiomysql pool that belongs to the user), :mod:`.compat` (what the drivers do not offer publicly).
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ...core.protocol import Opened, Steps, TaskDriver, ThreadDriver
from ...errors import StoreNotReady
from ..sql.requests import Broken, Pause, Refused, Statement
from ..sql.session import Session, no_connection
from ..sql.store import SqlStore
from ..sql.url import SqlAddress, read_url, refuse, without
from .sql import LOCK_WAIT, MySQL

_PLACE = re.compile(r"%\((\w+)\)s")
GIVE_UP_WITHIN = 0.3
"""How long it may take to end a statement that is still under way when its connection is closed."""
_PASSED = ("unix_socket", "read_default_file", "read_default_group", "program_name")
"""Options of the URL that both drivers are given as they are."""
_TLS = ("ssl_mode", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity")
_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")
_IGNORED = ("charset", "use_unicode", "binary_prefix", "autocommit", "connect_timeout", "read_timeout", "write_timeout")
"""What SQLAlchemy's URLs often have, and leasehold sets itself."""
_OPTIONS = (*_PASSED, *_TLS, "bind_address", *_IGNORED)
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def open_url(url: str, namespace: str) -> Opened:
    import pymysql  # noqa: F401  (named in the error if it is missing)

    scheme = url.partition("://")[0].lower()
    place = read_url(url)
    place = place._replace(options=_spelt(place.options))
    refuse(place.options, _OPTIONS, scheme)
    _flag(place, "ssl_verify_cert"), _flag(place, "ssl_verify_identity")
    if (mode := place.options.get("ssl_mode", "required")) not in _MODES:
        raise ValueError(f"{scheme}: ssl_mode must be one of {', '.join(_MODES)}, not {mode!r}")
    if place.database is None and "." not in place.table:
        raise ValueError(f"{scheme}: the store's URL has no database: {scheme}://user@host/database")

    session = Session(MySQL(place.table, scheme), namespace)

    def threads() -> ThreadDriver:
        from .threads import make

        return make(session, place)

    def tasks() -> TaskDriver:
        import aiomysql  # noqa: F401

        from .tasks import make

        return make(session, place)

    return Opened(SqlStore(session), threads, tasks)


def arguments(place: SqlAddress, limit: float) -> dict[str, Any]:
    """How both drivers connect."""
    found: dict[str, Any] = {
        "host": place.host or "127.0.0.1",
        "port": place.port or 3306,
        "user": place.user,
        "password": place.password or "",
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": max(0.1, limit),
        # A statement waits for a row so long, and is sent again if there is time left: it must not wait for a minute
        # and then be done after its caller gave up.
        "init_command": f"SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT}",
    }
    if place.database is not None:
        found["database"] = place.database
    if (context := tls(place)) is not None:
        found["ssl"] = context
    return {**found, **{name: place.options[name] for name in _PASSED if name in place.options}}


def tls(place: SqlAddress) -> ssl.SSLContext | None:
    """What a server's certificate must be like, the same for both drivers; None when no option of TLS is given.

    A given ``ssl_ca`` is what it is checked against, else, with ``ssl_verify_cert``, the system's authorities."""
    given = {key: value for key, value in place.options.items() if key in _TLS}
    mode = given.get("ssl_mode", "required")
    if not given or mode == "disabled" or given == {"ssl_mode": "preferred"}:
        return None
    authority, identity = given.get("ssl_ca"), _flag(place, "ssl_verify_identity") or mode == "verify_identity"
    verify = True if mode == "verify_ca" else _flag(place, "ssl_verify_cert")
    try:
        context = ssl.create_default_context(cafile=authority)
        # Certificates as MySQL makes them for itself do not pass the strict reading that newer Pythons begin with.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = bool(identity)
        if not (identity or (authority is not None if verify is None else verify)):
            context.verify_mode = ssl.CERT_NONE
        if "ssl_cert" in given:
            context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"))
    except OSError as error:
        raise StoreNotReady(f"cannot load the files of the TLS options: {error}") from error
    return context


def _spelt(options: dict[str, str]) -> dict[str, str]:
    """The options as we spell them: MySQL's own URLs say ``ssl-mode=REQUIRED``, SQLAlchemy's ``ssl_check_hostname``."""
    found = {name.replace("-", "_"): value for name, value in options.items()}
    if "ssl_check_hostname" in found:
        found.setdefault("ssl_verify_identity", found.pop("ssl_check_hostname"))
    if "ssl_mode" in found:
        found["ssl_mode"] = found["ssl_mode"].lower()
    return found


def _flag(place: SqlAddress, name: str) -> bool | None:
    text = place.options.get(name, "").lower()
    if text and text not in _TRUE + _FALSE:
        raise ValueError(f"{name} must be true or false, not {text!r}")
    return text in _TRUE if text else None


def ending(number: int, text: str) -> Steps[None]:
    """End a statement that we have given up on, if that connection still has it: a number may be another's by now."""
    where = "FROM information_schema.PROCESSLIST WHERE ID = %(number)s AND INFO = %(text)s"
    there = Statement(f"SELECT COUNT(*) {where}", {"number": number, "text": text})
    try:
        if (yield there).rows[0][0]:
            yield Statement(f"KILL {number}", {})
        while (yield there).rows[0][0]:
            yield Pause(0.01)
    except Refused:
        pass  # it has just ended


@lru_cache(500)
def _parts(sql: str) -> tuple[Sequence[str], Sequence[str]]:
    """The text between the placeholders, and their names."""
    parts = _PLACE.split(sql)
    return parts[::2], parts[1::2]


def composed(statement: Statement, escape: Callable[[str], str]) -> str:
    """The statement with its values in it, as these drivers send it. ``escape`` is the connection's own."""
    texts, names = _parts(statement.sql)
    if not names:
        return statement.sql
    literals = {name: _literal(value, escape) for name, value in statement.values.items()}
    pieces = [""] * (len(texts) + len(names))
    pieces[::2] = texts
    pieces[1::2] = [literals[name] for name in names]
    return "".join(pieces)


def _literal(value: Any, escape: Callable[[str], str]) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    return f"'{value}'" if value.isalnum() and value.isascii() else escape(value)


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
    for reason in (error.__cause__, getattr(error, "original_exception", None)):
        if isinstance(reason, ssl.SSLCertVerificationError):
            return StoreNotReady(f"the server's certificate is not trusted: {reason.verify_message}")
    code = failed.code if isinstance(failed, Refused) else None
    return no_connection(session.dialect, code, str(failed))
