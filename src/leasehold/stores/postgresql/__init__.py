"""``postgresql://``: leases in a table of PostgreSQL. Driver: psycopg 3.

**Stored**: one row per name, as ``stores/sql`` describes. **Clock**: the server's ``clock_timestamp()``, which advances
within a transaction. **Wake-ups**: NOTIFY on a channel per process, sent by the statement that grants; one connection
listens, and proves from time to time that notifications arrive (a pooler may drop them).

**To read next**: :mod:`.sql` (the statements), :mod:`.libpq` (how they are sent and prepared), :mod:`.threads` and
:mod:`.tasks` (connections and listeners), :mod:`.pool` (a pool of psycopg_pool that belongs to the user).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...core.protocol import Opened, TaskDriver, ThreadDriver
from ..sql.session import Session
from ..sql.store import SqlStore
from ..sql.url import OURS, read_url
from .sql import PostgreSQL

_SECRETS = ("password", "sslpassword")


def open_url(url: str, namespace: str) -> Opened:
    from psycopg.conninfo import conninfo_to_dict

    place = read_url(url)
    conninfo = _conninfo(url)
    if wrong := _what_is_wrong(conninfo):
        raise ValueError(f"postgresql: bad store URL: {wrong}")
    if password := conninfo_to_dict(conninfo).get("password"):  # it may be among the options
        place = place._replace(password=str(password))

    session = Session(PostgreSQL(place.table), namespace)

    def threads() -> ThreadDriver:
        from .threads import make

        return make(session, conninfo, place)

    def tasks() -> TaskDriver:
        from .tasks import make

        return make(session, conninfo, place)

    return Opened(SqlStore(session), threads, tasks)


def _conninfo(url: str) -> str:
    """The URL without what is ours: libpq reads the rest itself, several hosts and all."""
    base, _, query = url.partition("?")
    kept = [part for part in query.split("&") if part and part.partition("=")[0] not in OURS]
    # asyncpg says ssl=require where libpq says sslmode=require. Of ssl, libpq knows ssl=true.
    kept = [f"sslmode={part[4:]}" if part.startswith("ssl=") and part != "ssl=true" else part for part in kept]
    return base + ("?" + "&".join(kept) if kept else "")


def _what_is_wrong(conninfo: str) -> str:
    """Which part libpq does not take; empty if it takes them all. Not in its words: they quote what it has stumbled
    over, which may be a piece of a password."""
    base, _, query = conninfo.partition("?")
    if "@" in _hosts(base):
        return "too many @ before the host (in a password, write @ as %40)"
    if _taken(conninfo):
        return ""
    for part, what in _parts(base.partition("://")[2]):
        if not _taken(f"postgresql://{part}"):
            return f"{what} (write % as %25, @ as %40, / as %2F, : as %3A, a space as %20)"
    # A name that is none of libpq's is shown if it cannot be what comes after an & or ? in a password.
    secret = "@" in query or any(part.startswith(_SECRETS) for part in query.split("&"))
    for option in filter(None, query.split("&")):
        name = option.partition("=")[0]
        if not _taken(f"postgresql://?{option}"):
            if _taken(f"postgresql://?{name}="):
                return f"the value of the option {name!r} (write % as %25, & as %26, a space as %20)"
            known = re.fullmatch(r"\w+", name, re.ASCII) and not secret
            ours = f"libpq has no option {name!r}, and leasehold has {', '.join(OURS)}"
            return ours if known else "one of the options after the ?"
    return "libpq does not accept it"


def _parts(rest: str) -> Iterator[tuple[str, str]]:
    """What comes before the options, each part as it would be alone in a URL, and what it is called."""
    server, slash, database = rest.partition("/")
    login, at, hosts = server.partition("@")
    if not at:
        login, hosts = "", server
    user, colon, password = login.partition(":")
    yield f"{user}{at}", "the user"
    yield f"u{colon}{password}@", "the password"
    yield hosts, "the host"
    yield f"{slash}{database}", "the database"


def _hosts(base: str) -> str:
    return base.partition("://")[2].partition("/")[0].partition("@")[2]


def _taken(conninfo: str) -> bool:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(conninfo)
    except psycopg.Error:
        return False
    return True
