"""``sqlite:///file``: the embedded store, for all processes of one machine.

Stored shape: one row per name in ``leasehold`` (below). Its ``state`` is the entry as JSON, empty if the name is free.
Times are microseconds of CLOCK_BOOTTIME, together with the boot id. A row with another boot id is from an earlier boot,
or from a container with its own boot id: its holders then keep at most their ttl from now.
A row with a ``note`` is never purged.
``leasehold_meta`` has the highest purged token, and the time of the last purge.

A change of one or several names is one statement, conditional on the versions that were read, so the file's write lock
is not held while Python runs. Only the purge is a transaction of several statements.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ...core import clock
from ...core.protocol import SECOND, Steps, T, run_steps
from ...errors import StoreError, StoreNotReady, StoreUnavailable
from ..common import forms
from ..common.doorbell import Doorbell
from ..common.entries import (
    Alive,
    Page,
    Read,
    ReadNote,
    Ring,
    Row,
    Swap,
    SwapAll,
    Tidy,
    WriteNote,
    outlive_boot,
)
from ..common.reentry import refused
from .file import boot_id, identity, is_default, refuse_network, warn_in_container

FORMAT = 1
"""The format of a row. A newer one is refused, so that an old process never misreads a newer record."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS leasehold (
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    format    INTEGER NOT NULL,
    version   INTEGER NOT NULL,
    token     INTEGER NOT NULL,
    boot      TEXT NOT NULL,
    state     TEXT NOT NULL,
    updated   INTEGER NOT NULL,
    note      TEXT,
    PRIMARY KEY (namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leasehold_meta (
    key   TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
"""
_READ = "SELECT format, version, token, boot, state FROM leasehold WHERE namespace = ? AND name = ?"
_FLOOR = "SELECT value FROM leasehold_meta WHERE key = 'floor'"
_INSERT = "INSERT OR IGNORE INTO leasehold VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)"
_UPDATE = """UPDATE leasehold SET format = ?, version = version + 1, token = ?, boot = ?, state = ?, updated = ?
    WHERE namespace = ? AND name = ? AND version = ?"""
# All of the swaps or none, in one statement, so that nothing that interrupts Python can split them.
_SWAP_ALL = """INSERT INTO leasehold WITH swap (name, version, token, state) AS (VALUES {rows})
    SELECT :namespace, name, :format, :wall, token, :boot, state, :wall, NULL FROM swap
    WHERE (SELECT count(*) FROM swap LEFT JOIN leasehold AS old ON old.namespace = :namespace AND old.name = swap.name
        WHERE swap.version = coalesce(old.version, 0)) = :count
    ON CONFLICT (namespace, name) DO UPDATE SET format = excluded.format, version = version + 1,
        token = excluded.token, boot = excluded.boot, state = excluded.state, updated = excluded.updated"""
# ``after`` is a cast for a name that is not UTF-8, which cannot be passed as text.
_PAGE = """SELECT name, format, version, token, boot, state FROM leasehold
    WHERE namespace = ? AND name > {after} AND substr(name, 1, ?) = ? ORDER BY name LIMIT ?"""
_NOTE = "SELECT format, note FROM leasehold WHERE namespace = ? AND name = ?"
_WRITE_NOTE = """UPDATE leasehold SET note = ?, version = version + 1, updated = ?
    WHERE namespace = ? AND name = ? AND version = ?"""
_IDLE = """SELECT namespace, name, version, token, boot, state FROM leasehold
    WHERE updated < ? AND note IS NULL AND format = ? LIMIT 1000"""

_HAS_NOTES = "SELECT count(*) FROM pragma_table_info('leasehold') WHERE name = 'note'"

REST_LIMIT = 1.0
"""Seconds that a fork, a close or a stop waits for the request of another thread."""
PAUSES = (0.001, 0.002, 0.005, 0.010, 0.015, 0.020, 0.025)
"""Seconds between tries while another process has the write lock. The mutex is free meanwhile."""
KEEP_RECORDS = 24 * 3600 * SECOND
TIDY_EVERY = 3600 * SECOND
CHECK_EVERY = 0.02
"""Seconds between checks whether the path still names the file that was opened."""


class _Line:
    """A connection and its mutex, which is held for one request and never during a wait."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()  # a signal handler or destructor may re-enter
        self.connection: sqlite3.Connection | None = None
        self.file: tuple[int, int] | None = None
        self.check_at = 0.0
        self.busy = False

    def close(self, limit: float = 0.0) -> None:
        """Close the connection, unless it stays in use for ``limit``: its user may be a thread that waits for this one,
        because a signal handler interrupted it."""
        try:
            if self.mutex.acquire(timeout=max(0.0, limit)):
                connection, self.connection = self.connection, None
                if connection is not None:
                    connection.close()
        finally:  # unconditional: an exception from a signal handler can come between any two calls
            try:
                self.mutex.release()
            except RuntimeError:
                pass  # it was not acquired


class Database:
    """The file. Answers the requests of :mod:`leasehold.stores.common.entries` from any thread, one at a time.

    The main thread has a connection of its own, so that a long signal handler in the middle of its request blocks
    neither the keeper nor another thread.
    """

    def __init__(self, path: str, namespace: str) -> None:
        self.path = path
        self.bell = Doorbell(path + "-wake")
        self.on_ring: Callable[[str], None] = lambda attempt: None
        self._namespace = namespace
        self._closed = False
        self._boot = ""
        self._reset()
        _databases.add(self)

    def _reset(self) -> None:
        self._main = _Line()
        self._others = _Line()
        self._bell_mutex = threading.RLock()

    def run(self, steps: Steps[T], limit: float) -> T:
        return self.run_until(steps, clock.now() + limit)

    def run_until(self, steps: Steps[T], ends: float) -> T:
        if clock.now() >= ends:
            raise StoreUnavailable(f"{self.path}: timed out waiting for other calls of this process")
        lost = ""

        def answer(request: Any) -> Any:
            nonlocal lost
            if type(request) is Read and request.name == lost and clock.now() >= ends:
                raise StoreUnavailable(
                    f"{self.path}: timed out, because other processes kept changing the record of {lost!r}"
                )
            try:
                reply = self._ask(ends, request)
            except sqlite3.Error as error:
                raise self._translate(error) from error
            lost = request.name if type(request) is Swap and not reply else ""
            return reply

        return run_steps(steps, answer)

    def _ask(self, ends: float, request: Any) -> Any:
        """Answer one request. While other processes write, try again until ``ends``."""
        match request:
            case Ring(session, attempt):
                if session == self.bell.session:
                    self.on_ring(attempt)
                    return True
                return self.bell.ring(session, attempt)
            case Alive(session):
                return self.bell.alive(session)
        line = self._main if threading.get_ident() == threading.main_thread().ident else self._others
        tries = 0
        while True:
            if self._closed:
                raise StoreUnavailable(f"{self.path} is closed")
            try:
                with line.mutex:
                    if not _forking:
                        try:
                            return self._handle_in(line, request)
                        finally:
                            if self._closed:  # by another thread, meanwhile
                                line.close()
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or clock.now() >= ends:
                    raise
            if clock.now() >= ends:
                raise StoreUnavailable(f"{self.path} is not available while this process forks")
            time.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1

    def _handle_in(self, line: _Line, request: Any) -> Any:
        """Answer one request. A signal handler that interrupted a request gets a connection of its own: the first one
        may be in a transaction that is rolled back, or see an old snapshot."""
        if not line.busy:
            try:
                line.busy = True
                return self._handle(self._opened(line), request)
            finally:
                line.busy = False
        if line is self._others or line.connection is None or line.connection.in_transaction:
            raise refused(self.path)  # it could wait for the call that it interrupted
        aside = _Line()
        try:
            return self._handle(self._opened(aside), request)
        finally:
            aside.close()

    def _opened(self, line: _Line) -> sqlite3.Connection:
        now = clock.now()
        if line.connection is not None and now >= line.check_at:
            line.check_at = now + CHECK_EVERY
            if line.file != identity(self.path):
                line.close()
        if line.connection is None:
            self._open(line)
        assert line.connection is not None
        return line.connection

    def _open(self, line: _Line) -> None:
        self._boot = boot_id()
        self.path = os.path.realpath(self.path)  # all processes must use the same folder for wake-ups
        self.bell.folder = f"{self.path}-wake"
        folder = os.path.dirname(self.path)
        if is_default(self.path):
            warn_in_container(self.path)
            try:
                os.makedirs(folder, mode=0o700, exist_ok=True)
            except OSError as error:
                raise StoreNotReady(f"cannot create the folder of the default database: {error}") from error
        refuse_network(self.path)
        before = identity(self.path)
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreNotReady(f"{self.path} is in journal mode {mode!r} and cannot be switched to WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_SCHEMA)
            connection.execute(_READ, ("", "")).fetchone()
            _add_notes(connection)
            connection.text_factory = bytes  # so that text which is not UTF-8 fails its own row only
            with self._bell_mutex:
                if self.bell.fd < 0 and not self._closed:
                    self.bell.open(os.stat(self.path))
            line.file = identity(self.path) if before is None else before  # if replaced meanwhile, noticed later
            line.check_at = clock.now() + CHECK_EVERY
            line.connection = connection
        except BaseException:
            connection.close()
            line.connection = None
            raise

    def _handle(self, connection: sqlite3.Connection, request: Any) -> Any:
        match request:
            case Read(name):
                found = connection.execute(_READ, (self._namespace, name)).fetchone()
                if found is None:
                    floor = connection.execute(_FLOOR).fetchone()
                    found = (FORMAT, 1, floor[0] if floor else 0, self._boot.encode(), b"")
                    return self._row(name, found)._replace(version=0)
                row = self._row(name, found)
                if row.fault is not None:
                    raise row.fault
                return row
            case Swap():
                return self._swap(connection, request)
            case SwapAll(swaps):
                return self._swap_all(connection, swaps)
            case Page():
                return self._page(connection, request)
            case ReadNote(name):
                found = connection.execute(_NOTE, (self._namespace, name)).fetchone()
                if found is None:
                    return None
                try:
                    self._check_format(name, found[0])
                    return None if found[1] is None else _text(found[1])
                except ValueError as error:
                    raise forms.damaged(name, error, self.path) from None
            case WriteNote(name, version, text):
                written = (text, clock.wall_us(), self._namespace, name, version)
                return connection.execute(_WRITE_NOTE, written).rowcount > 0
            case Tidy():
                return self._tidy(connection)
        raise TypeError(request)

    def _page(self, connection: sqlite3.Connection, page: Page) -> list[Row]:
        prefix, after, count = page
        cursor: str | bytes = after
        sql = _PAGE.format(after="?")
        try:
            after.encode()
        except UnicodeEncodeError:
            cursor, sql = after.encode(errors="surrogateescape"), _PAGE.format(after="CAST(? AS TEXT)")
        where = (self._namespace, cursor, len(prefix), prefix, count)
        return [
            self._row(bytes(name).decode(errors="surrogateescape"), found)
            for name, *found in connection.execute(sql, where).fetchall()
        ]

    def _swap(self, connection: sqlite3.Connection, swap: Swap) -> int:
        name, version, token, state = swap
        wall = clock.wall_us()
        if version:
            row = (FORMAT, token, self._boot, state, wall, self._namespace, name, version)
            return version + 1 if connection.execute(_UPDATE, row).rowcount else 0
        # A version that no earlier row of this name has had.
        new = (self._namespace, name, FORMAT, wall, token, self._boot, state, wall)
        return wall if connection.execute(_INSERT, new).rowcount else 0

    def _swap_all(self, connection: sqlite3.Connection, swaps: Sequence[Swap]) -> list[int]:
        wall = clock.wall_us()
        values: dict[str, Any] = {"namespace": self._namespace, "format": FORMAT, "boot": self._boot, "wall": wall}
        values["count"] = len(swaps)
        rows = []
        for number, swap in enumerate(swaps):
            row = {f"{field}{number}": value for field, value in swap._asdict().items()}
            rows.append(f"(:{', :'.join(row)})")
            values |= row
        sql = _SWAP_ALL.format(rows=", ".join(rows))
        if connection.execute(sql, values).rowcount != len(swaps):
            return []
        return [swap.version + 1 if swap.version else wall for swap in swaps]

    def _row(self, name: str, found: Sequence[Any]) -> Row:
        """A record as read. ``fault`` is set if it is not in the form that leasehold writes."""
        format, version, token, boot, state = found
        fault = None
        text = ""
        try:
            self._check_format(name, format)
            forms.number(version, "version", 1, forms.MOST - 1)
            forms.number(token, "token", 0, forms.MOST - 1)
            boot, text = _text(boot), _text(state)
        except ValueError as error:
            version, token, fault = 0, 0, forms.damaged(name, error, self.path)
        except StoreNotReady as error:
            version, token, fault = 0, 0, error
        now, wall = clock.now_us(), clock.wall_us()
        return Row(name, version, token, text, now, wall, self.bell.session, boot != self._boot, fault)

    def _check_format(self, name: str, format: object) -> None:
        if forms.number(format, "format", 1, forms.MOST) > FORMAT:
            raise StoreNotReady(
                f"the record of {name!r} in {self.path} was written by a newer leasehold (format {format}, this "
                f"version knows {FORMAT}): upgrade leasehold"
            )

    def _tidy(self, connection: sqlite3.Connection) -> bool:
        """Once an hour, in one of the processes: purge names that have been free for a day. True: there are more."""
        wall = clock.wall_us()
        last = connection.execute("SELECT value FROM leasehold_meta WHERE key = 'tidied'").fetchone()
        if last is not None and type(last[0]) is int and 0 <= wall - last[0] < TIDY_EVERY:
            return False
        with _transaction(connection):
            old = connection.execute(_IDLE, (wall - KEEP_RECORDS, FORMAT)).fetchall()
            idle = [each for found in old if (each := self._idle(connection, found, wall)) is not None]
            if idle:
                floor = max(token for _, _, token in idle)
                connection.execute(
                    "INSERT INTO leasehold_meta VALUES ('floor', ?) "
                    "ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
                    (floor,),
                )
                keys = [(namespace, name) for namespace, name, _ in idle]
                connection.executemany("DELETE FROM leasehold WHERE namespace = ? AND name = ?", keys)
            more = bool(idle) and len(old) == 1000
            if not more:
                connection.execute("INSERT OR REPLACE INTO leasehold_meta VALUES ('tidied', ?)", (wall,))
        self.bell.tidy((wall - KEEP_RECORDS) / SECOND)
        return more

    def _idle(self, connection: sqlite3.Connection, found: Sequence[Any], wall: int) -> tuple[str, str, int] | None:
        """Namespace, name and token of a record, if the name can have neither holders nor waiters any more."""
        now = clock.now_us()
        try:
            space, name, boot, state = (_text(found[place]) for place in (0, 1, 4, 5))
            version, token = forms.number(found[2], "version", 1, forms.MOST - 1), found[3]
            entry = forms.load(name, token, state)
        except ValueError:
            return None  # damaged: reported to those who use the name
        if boot != self._boot:
            outlive_boot(entry, now)
        if all(holder.expires <= now for holder in entry.holders):
            return space, name, token
        if boot != self._boot:  # store the limited times, so that its holders do expire
            row = (FORMAT, token, self._boot, entry.dump(), wall, space, name, version)
            connection.execute(_UPDATE, row)
        return None

    def _translate(self, error: sqlite3.Error) -> StoreError:
        code = _code(error)
        where = f"SQLite database {self.path}"
        if os.path.isdir(self.path):
            return StoreNotReady(f"{where} is a directory: give the path of a file")
        if isinstance(error, sqlite3.ProgrammingError):  # by a signal handler or destructor, during the call
            return StoreUnavailable(f"{where} is closed")
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY_DBMOVED:
            return StoreUnavailable(f"{where} was moved or deleted while in use: the next call opens it again")
        match code:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return StoreUnavailable(f"{where}: timed out waiting for the write lock, which another process holds")
            case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
                return StoreNotReady(
                    f"{where} is damaged, or not a SQLite database ({error}): move the file away, and the next use "
                    "creates a new one"
                )
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return StoreNotReady(
                    f"{where} is read-only ({error}): give this user write access to the file and its folder"
                )
            case sqlite3.SQLITE_CANTOPEN:
                return StoreNotReady(f"{where} cannot be opened: {self._why_not(self.path)}")
            case sqlite3.SQLITE_FULL:
                return StoreUnavailable(f"{where}: the disk is full ({error})")
            case sqlite3.SQLITE_ERROR | sqlite3.SQLITE_MISMATCH | sqlite3.SQLITE_CONSTRAINT:
                return StoreNotReady(f"{where} has a table `leasehold` of another program ({error}): use another file")
        return StoreUnavailable(f"{where}: {error}")

    @staticmethod
    def _why_not(path: str) -> str:
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            return f"the folder {folder} does not exist; create it first"
        if not os.access(folder, os.W_OK):
            return f"this user has no write access to the folder {folder}"
        return "check that this user has read and write access"

    def disconnect(self) -> None:
        self._closed = True  # ends the waits for the write lock
        self._close(REST_LIMIT)
        with self._bell_mutex:
            self.bell.close()

    def _close(self, limit: float) -> None:
        ends = clock.now() + limit
        for line in self._main, self._others:
            line.close(ends - clock.now())

    def __del__(self) -> None:
        if hasattr(self, "_others"):
            self._close(0.0)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """No thread of this process writes during the block, so a process that is stopped in it blocks no other.

        A write that does not end within ``REST_LIMIT`` is not waited for."""
        with ExitStack() as held:
            ends = clock.now() + REST_LIMIT
            for line in self._main, self._others:
                if line.mutex.acquire(timeout=max(0.0, ends - clock.now())):
                    held.callback(line.mutex.release)
            yield

    def before_fork(self, limit: float) -> None:
        """Close the connections.

        SQLite counts file locks per process. A child that inherits an open connection believes that it has the
        parent's locks. When the parent closes, it deletes the log that the child uses, and both write different files.
        """
        self._close(limit)

    def after_fork(self) -> None:
        """Keep inherited connections alive for ever: SQLite forbids even closing them in the child."""
        # Connections are still open if a request did not end in time, or a signal handler raised before the fork.
        lines = (self._main, self._others)
        _inherited.extend(line.connection for line in lines if line.connection is not None)
        self._reset()
        self.bell.after_fork()


_inherited: list[sqlite3.Connection] = []
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_forking: list[bool] = []
"""One item per thread that forks now. No connection is opened while there are any."""


def _before_fork() -> None:
    _forking.append(True)
    ends = clock.now() + REST_LIMIT
    for database in list(_databases):
        database.before_fork(ends - clock.now())


if hasattr(os, "register_at_fork"):  # built-in methods: no signal handler interrupts them
    os.register_at_fork(before=_before_fork, after_in_parent=_forking.pop, after_in_child=_forking.clear)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction for the block, which may also end it by itself."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        if connection.in_transaction:
            connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _add_notes(connection: sqlite3.Connection) -> None:
    """Add the column ``note`` to a table of the first version. Another process may do the same at this moment."""
    if connection.execute(_HAS_NOTES).fetchone() == (0,):
        with _transaction(connection):
            if connection.execute(_HAS_NOTES).fetchone() == (0,):
                connection.execute("ALTER TABLE leasehold ADD COLUMN note TEXT")


def _text(value: object) -> str:
    """The text of a column, which is read as bytes. Raises Damaged."""
    if not isinstance(value, bytes):
        raise forms.Damaged("a column is not text")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise forms.Damaged("a column is not UTF-8") from None


def _code(error: sqlite3.Error) -> int:
    """The primary result code, which is the low byte of an extended one."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
