"""What an operator should know about a SQLite file that leases live in."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

from ...errors import StoreNotReady
from ...findings import ERROR, OK, WARNING, Finding
from ..fifo import MEND_FOLDER, Untrusted, open_folder
from .store import CONTAINER_ADVICE, FORMAT, in_container, is_default, path_of, refuse_network


def doctor(url: str) -> list[Finding]:
    """Look at the file, its folder and its records. Changes nothing, and makes nothing."""
    path = os.path.realpath(path_of(url))
    try:
        refuse_network(path)
        return list(_look(path))
    except StoreNotReady as error:
        return [Finding(ERROR, "folder", str(error), "mend what it says")]
    except sqlite3.Error as error:
        return [Finding(ERROR, "file", f"{path}: {error}", "is it a leasehold database? Use another file")]


def _look(path: str) -> Iterator[Finding]:
    yield Finding(OK, "SQLite", f"version {sqlite3.sqlite_version}")
    if is_default(path) and in_container():
        yield Finding(WARNING, "container", f"the default database {path} is used in a container", CONTAINER_ADVICE)
    folder = os.path.dirname(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding(ERROR, "folder", f"{folder} is missing, or closed to this user", "make it, or give the right")
        return
    if not os.path.exists(path):
        yield Finding(OK, "file", f"{path} is not there yet; it is made on first use")
        return
    for name in (path, f"{path}-wal", f"{path}-shm"):
        if os.path.exists(name) and not os.access(name, os.R_OK | os.W_OK):
            advice = "let all who use these leases be of one group that may write it"
            yield Finding(ERROR, "file", f"{name} is closed to this user", advice)
            return
    with closing(sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=5)) as connection:
        yield from _records(path, connection)
    try:
        if os.path.lexists(f"{path}-wake"):
            open_folder(f"{path}-wake", os.stat(path)).close()
    except (Untrusted, OSError) as error:
        message = f"{path}-wake is not to be used: {error}. Waiters poll, and the death of a holder is not noticed"
        yield Finding(WARNING, "wake-ups", message, MEND_FOLDER)
    if os.stat(path).st_mode & 0o002:
        message = f"every user of this machine may write {path}"
        yield Finding(WARNING, "permissions", message, f"chmod o-w {path}, unless that is what you want")


def _records(path: str, connection: sqlite3.Connection) -> Iterator[Finding]:
    def ask(sql: str) -> object:
        return connection.execute(sql).fetchone()[0]

    damage = ask("PRAGMA quick_check(1)")
    if damage != "ok":
        yield Finding(
            ERROR,
            "file",
            f"{path} is damaged: {damage}",
            "stop all programs that use it, then move it away: a new one is made",
        )
        return
    if not ask("SELECT count(*) FROM sqlite_schema WHERE name = 'leasehold'"):
        yield Finding(OK, "file", f"{path} has no leases yet; their table is made on first use")
        return
    yield Finding(OK, "file", f"{path} is sound, with records of {ask('SELECT count(*) FROM leasehold')} names")
    if newer := ask(f"SELECT count(*) FROM leasehold WHERE format > {FORMAT}"):
        message = f"{newer} records have a newer format than this leasehold knows ({FORMAT})"
        yield Finding(ERROR, "records", message, "upgrade this leasehold")
