"""``postgresql://``: leases in a table, one statement each, with LISTEN/NOTIFY for the push. Driver: psycopg 3."""

from __future__ import annotations

from ..protocol import Opened, TaskDriver, ThreadDriver
from .postgresql_sql import PostgreSQL
from .sql import SqlStore
from .sql_session import Session
from .sql_url import Place, read_url


def open_url(url: str, namespace: str) -> Opened:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    place = read_url(url)
    conninfo = _conninfo(url)
    try:
        conninfo_to_dict(conninfo)
    except psycopg.Error as error:
        raise ValueError(f"postgresql: the store's URL is not understood: {_words(error, place)}") from None

    def threads() -> ThreadDriver:
        from .postgresql_threads import make

        return make(Session(PostgreSQL(place.table), namespace), conninfo, place)

    def tasks() -> TaskDriver:
        from .postgresql_tasks import make

        return make(Session(PostgreSQL(place.table), namespace), conninfo, place)

    return Opened(SqlStore("postgresql"), threads, tasks)


def _conninfo(url: str) -> str:
    """The URL without what is ours: libpq reads the rest itself, several hosts and all."""
    base, _, query = url.partition("?")
    ours = ("table=", "pool_size=", "push=")
    kept = [part for part in query.split("&") if part and not part.startswith(ours)]
    return base + ("?" + "&".join(kept) if kept else "")


def _words(error: object, place: Place) -> str:
    from .sql_url import without

    return without(error, place.password)
