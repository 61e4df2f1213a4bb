"""``leasehold doctor`` for a SQLite file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

from ...errors import StoreNotReady
from ..common.doorbell import MEND_FOLDER, Untrusted, open_folder
from ..common.findings import ERROR, OK, WARNING, Finding
from .file import CONTAINER_ADVICE, in_container, is_default, path_of, refuse_network
from .store import FORMAT


def doctor(url: str) -> list[Finding]:
    """Check the file, its folder and its records. Changes and creates nothing. Raises ValueError for a bad URL."""
    path = os.path.realpath(path_of(url))
    try:
        refuse_network(path)
        return list(_look(path))
    except StoreNotReady as error:
        return [Finding(ERROR, "folder", str(error), "fix what the message names")]
    except sqlite3.Error as error:
        return [
            Finding(ERROR, "file", f"{path}: {error}", "check that it is a leasehold database, or use another file")
        ]


def _look(path: str) -> Iterator[Finding]:
    yield Finding(OK, "SQLite", f"version {sqlite3.sqlite_version}")
    if is_default(path) and in_container():
        yield Finding(WARNING, "container", f"the default database {path} is used in a container", CONTAINER_ADVICE)
    folder = os.path.dirname(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        message = f"{folder} does not exist, or this user has no write access to it"
        yield Finding(ERROR, "folder", message, "create it, or give this user write access")
        return
    if not os.path.exists(path):
        yield Finding(OK, "file", f"{path} does not exist yet; the first use creates it")
        return
    for name in (path, f"{path}-wal", f"{path}-shm"):
        if os.path.exists(name) and not os.access(name, os.R_OK | os.W_OK):
            advice = "put all users of these leases into one group, and give that group write access"
            yield Finding(ERROR, "file", f"this user has no read and write access to {name}", advice)
            return
    with closing(sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=5)) as connection:
        yield from _records(path, connection)
    try:
        if os.path.lexists(f"{path}-wake"):
            open_folder(f"{path}-wake", os.stat(path)).close()
    except (Untrusted, OSError) as error:
        message = f"{path}-wake is not used: {error}. Waiters poll, and a dead holder goes unnoticed until it expires"
        yield Finding(WARNING, "wake-ups", message, MEND_FOLDER)
    if os.stat(path).st_mode & 0o002:
        message = f"every user of this machine can write {path}"
        yield Finding(WARNING, "permissions", message, f"run `chmod o-w {path}`, unless this is intended")


def _records(path: str, connection: sqlite3.Connection) -> Iterator[Finding]:
    def ask(sql: str) -> object:
        return connection.execute(sql).fetchone()[0]

    damage = ask("PRAGMA quick_check(1)")
    if damage != "ok":
        yield Finding(
            ERROR,
            "file",
            f"{path} is damaged: {damage}",
            "stop all programs that use it, then move it away; the next use creates a new one",
        )
        return
    if not ask("SELECT count(*) FROM sqlite_schema WHERE name = 'leasehold'"):
        yield Finding(OK, "file", f"{path} has no leases yet; the first use creates their table")
        return
    yield Finding(OK, "file", f"{path} is intact, with records of {ask('SELECT count(*) FROM leasehold')} names")
    if newer := ask(f"SELECT count(*) FROM leasehold WHERE format > {FORMAT}"):
        message = f"{newer} records were written by a newer leasehold (this version knows format {FORMAT})"
        yield Finding(ERROR, "records", message, "upgrade leasehold")
