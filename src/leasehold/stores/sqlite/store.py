"""``sqlite:///file``: the embedded store, for every process of one machine.

Stored shape: a row per name in ``leasehold`` (below); its ``state`` is the entry as JSON, empty when the name is free.
Times are microseconds of CLOCK_BOOTTIME, together with the kernel's boot id: a row of another boot has no holders.
A row with a ``note`` is never purged.
``leasehold_meta`` has the highest token that was ever purged and when the last purge was.

A change is one conditional statement on the version that was read: the file's write lock is never held while Python
runs. Only a change of several names is a transaction of such statements.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ... import clock
from ...entry import Entry
from ...errors import StoreError, StoreNotReady, StoreUnavailable
from ...log import WARNING, log
from ...protocol import SECOND, Opened, Steps, T, TaskDriver, ThreadDriver, refuse_options, run_steps
from ...typed import Any
from ..entries import Alive, JointEntryStore, Page, Read, ReadNote, Ring, Row, Swap, SwapAll, Tidy, WriteNote
from ..fifo import Doorbell

FORMAT = 1
"""Of a row. A newer one is refused, so that an old process never misreads a new one's record."""

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
_PAGE = """SELECT name, format, version, token, boot, state FROM leasehold
    WHERE namespace = ? AND name > ? AND substr(name, 1, ?) = ? ORDER BY name LIMIT ?"""
_NOTE = "SELECT format, note FROM leasehold WHERE namespace = ? AND name = ?"
_WRITE_NOTE = """UPDATE leasehold SET note = ?, version = version + 1, updated = ?
    WHERE namespace = ? AND name = ? AND version = ?"""
_IDLE = """SELECT namespace, name, token, boot, state FROM leasehold
    WHERE updated < ? AND note IS NULL LIMIT 1000"""

_HAS_NOTES = "SELECT count(*) FROM pragma_table_info('leasehold') WHERE name = 'note'"

BUSY_SLICE_MS = 250
KEEP_RECORDS = 24 * 3600 * SECOND
TIDY_EVERY = 3600 * SECOND
CHECK_EVERY = 0.02
"""How often to look whether the file is still the one that was opened."""

FORK_LIMIT = 1.0
"""How long a fork waits for an operation that is under way."""

_NETWORK = {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "9p", "virtiofs"}
_NETWORK |= {"fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.ceph", "ocfs2", "gfs2", "vboxsf"}


def default_url() -> str:
    """The embedded default: a file in the user's state folder."""
    return f"sqlite:///{_default_folder()}/leases.db"


def _default_folder() -> str:
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(os.path.abspath(state), "leasehold")


def path_of(url: str) -> str:
    """The absolute path of the file that a URL names. Raises ValueError."""
    path = refuse_options(url)
    if not path.startswith("/"):
        raise ValueError("a SQLite URL has three slashes before a relative path and four before an absolute one")
    path = path[1:]
    if "%" in path:
        from urllib.parse import unquote

        path = unquote(path)
    if not path or path.endswith("/"):
        raise ValueError("a SQLite URL names a file: sqlite:///leases.db")
    if path == ":memory:":
        raise ValueError("a SQLite database in memory can't be shared; for tests use memory://")
    if "\0" in path:
        raise ValueError("a SQLite URL's path has a NUL character")
    return os.path.abspath(path)


def open_url(url: str, namespace: str) -> Opened:
    path = path_of(url)

    def threads() -> ThreadDriver:
        from .threads import SqliteThreads

        return SqliteThreads(path, namespace)

    def tasks() -> TaskDriver:
        from .tasks import SqliteTasks

        return SqliteTasks(path, namespace)

    return Opened(JointEntryStore("sqlite"), threads, tasks)


class Database:
    """The file: answers the requests of :mod:`leasehold.stores.entries`, from any thread, one at a time."""

    def __init__(self, path: str, namespace: str) -> None:
        self.path = path
        self.bell = Doorbell(path + "-wake")
        self.on_ring: Callable[[str], None] = lambda attempt: None
        self._namespace = namespace
        self._mutex = threading.RLock()  # of which one can ask whether it is one's own
        self._closed = False
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._boot = ""
        self._ends = self._check_at = 0.0
        _databases.add(self)

    def run(self, steps: Steps[T], limit: float) -> T:
        now = clock.now()
        try:
            if not self._mutex.acquire(timeout=max(0.0, limit)):
                raise StoreUnavailable(f"{self.path} has been busy in this process for too long")
            self._ends = now + limit
            if self._closed:
                raise StoreUnavailable(f"{self.path} has been closed")
            if self._connection is None or (now >= self._check_at and self._moved(now)):
                self._patiently(self._open)
            return run_steps(steps, self._handle)
        except sqlite3.Error as error:
            raise self._translate(error) from error
        finally:
            # A KeyboardInterrupt may come between the lock's being taken and our hearing of it.
            if self._mutex._is_owned():  # type: ignore[attr-defined]
                self._mutex.release()

    def _patiently(self, function: Callable[..., T], *args: Any) -> T:
        """Call until other writers let us, or the time is over."""
        while True:
            try:
                return function(*args)
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or clock.now() >= self._ends:
                    raise
                time.sleep(0.002)  # some locks SQLite does not wait for by itself

    def _moved(self, now: float) -> bool:
        self._check_at = now + CHECK_EVERY
        return self._file != _identity(self.path)

    def _open(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._boot = _boot_id()
        self.path = os.path.realpath(self.path)  # everybody has to ring in the same folder
        self.bell.folder = f"{self.path}-wake"
        folder = os.path.dirname(self.path)
        if folder == _default_folder() and not os.path.isdir(folder):
            try:
                os.makedirs(folder, mode=0o700, exist_ok=True)
            except OSError as error:
                raise StoreNotReady(f"the folder of the default database cannot be made: {error}") from error
        refuse_network(self.path)
        before = _identity(self.path)
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_SLICE_MS}")
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreNotReady(f"{self.path} is in journal mode {mode!r} and cannot be put into WAL mode")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(_SCHEMA)
            connection.execute(_READ, ("", "")).fetchone()
            _add_notes(connection)
        except BaseException:
            connection.close()
            raise
        self._file = _identity(self.path) if before is None else before  # replaced meanwhile: it will be noticed
        self._check_at = clock.now() + CHECK_EVERY
        if self.bell.fd < 0:
            self.bell.open(os.stat(self.path))
        self._connection = connection

    def _handle(self, request: Any) -> Any:
        connection = self._connection
        assert connection is not None
        match request:
            case Read(name):
                if clock.now() >= self._ends:  # each time another was faster
                    raise StoreUnavailable(f"{self.path}: too many write to {name!r} at once")
                found = self._patiently(connection.execute, _READ, (self._namespace, name)).fetchone()
                if found is None:
                    floor = self._patiently(connection.execute, _FLOOR).fetchone()
                    return self._row(name, FORMAT, 0, floor[0] if floor else 0, self._boot, "")
                return self._row(name, *found)
            case Swap():
                return self._patiently(self._swap, connection, request)
            case SwapAll(swaps):
                return self._patiently(self._swap_all, connection, swaps)
            case Ring(session, attempt):
                if session == self.bell.session:
                    self.on_ring(attempt)
                    return True
                return self.bell.ring(session, attempt)
            case Alive(session):
                return self.bell.alive(session)
            case Page(prefix, after, count):
                where = (self._namespace, after, len(prefix), prefix, count)
                return [self._row(*found) for found in self._patiently(connection.execute, _PAGE, where)]
            case ReadNote(name):
                found = self._patiently(connection.execute, _NOTE, (self._namespace, name)).fetchone()
                if found is None:
                    return None
                self._check_format(name, found[0])
                return found[1]
            case WriteNote(name, version, text):
                written = (text, clock.wall_us(), self._namespace, name, version)
                return self._patiently(connection.execute, _WRITE_NOTE, written).rowcount > 0
            case Tidy():
                return self._patiently(self._tidy, connection)
        raise TypeError(request)

    def _swap(self, connection: sqlite3.Connection, swap: Swap) -> int:
        name, version, token, state = swap
        wall = clock.wall_us()
        if version:
            row = (FORMAT, token, self._boot, state, wall, self._namespace, name, version)
            return version + 1 if connection.execute(_UPDATE, row).rowcount else 0
        # A version that no earlier row of this name can have had.
        new = (self._namespace, name, FORMAT, wall, token, self._boot, state, wall)
        return wall if connection.execute(_INSERT, new).rowcount else 0

    def _swap_all(self, connection: sqlite3.Connection, swaps: Sequence[Swap]) -> list[int]:
        versions: list[int] = []
        with _transaction(connection):
            for swap in swaps:
                versions.append(self._swap(connection, swap))
                if not versions[-1]:
                    connection.execute("ROLLBACK")
                    return []
        return versions

    def _row(self, name: str, format: int, version: int, token: int, boot: str, state: str) -> Row:
        self._check_format(name, format)
        if boot != self._boot:
            state = ""  # whoever held it died with that boot
        return Row(name, version, token, state, clock.now_us(), clock.wall_us(), self.bell.session)

    def _check_format(self, name: str, format: int) -> None:
        if format > FORMAT:
            raise StoreNotReady(
                f"the record of {name!r} in {self.path} has format {format}, and this leasehold knows {FORMAT}: "
                "it was written by a newer one; upgrade this one"
            )

    def _tidy(self, connection: sqlite3.Connection) -> bool:
        """Once an hour, whoever comes first: purge names that have been free for a day. True: there are more."""
        wall = clock.wall_us()
        last = connection.execute("SELECT value FROM leasehold_meta WHERE key = 'tidied'").fetchone()
        if last is not None and 0 <= wall - last[0] < TIDY_EVERY:
            return False
        with _transaction(connection):
            old = connection.execute(_IDLE, (wall - KEEP_RECORDS,)).fetchall()
            idle = [(space, name, token) for space, name, token, boot, state in old if self._is_idle(boot, state)]
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

    def _is_idle(self, boot: str, state: str) -> bool:
        """Whether nobody can hold or wait any more."""
        if not state or boot != self._boot:
            return True
        return all(seen.expires_in <= 0 for seen in Entry.load("", 0, state).seen(clock.now_us()))

    def _translate(self, error: sqlite3.Error) -> StoreError:
        code = _code(error)
        where = f"SQLite database {self.path}"
        if os.path.isdir(self.path):
            return StoreNotReady(f"{where} is a directory: name a file")
        if error.sqlite_errorcode == sqlite3.SQLITE_READONLY_DBMOVED:
            return StoreUnavailable(f"{where} was moved or deleted while in use: it is opened anew")
        match code:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return StoreUnavailable(f"{where}: another process has held its write lock for too long")
            case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
                return StoreNotReady(f"{where} is damaged or no database ({error}): move it away, a new one is made")
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return StoreNotReady(
                    f"{where} is read-only ({error}): this user needs to write the file and its folder"
                )
            case sqlite3.SQLITE_CANTOPEN:
                return StoreNotReady(f"{where} cannot be opened: {self._why_not(self.path)}")
            case sqlite3.SQLITE_FULL:
                return StoreUnavailable(f"{where}: the disk is full ({error})")
            case sqlite3.SQLITE_ERROR | sqlite3.SQLITE_MISMATCH | sqlite3.SQLITE_CONSTRAINT:
                return StoreNotReady(f"{where} has a table of our name that is not ours ({error}): use another file")
        return StoreUnavailable(f"{where}: {error}")

    @staticmethod
    def _why_not(path: str) -> str:
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            return f"there is no folder {folder}; make it first"
        if not os.access(folder, os.W_OK):
            return f"this user may not write to the folder {folder}"
        return "check that this user may read and write it"

    def disconnect(self) -> None:
        self._closed = True
        self._ends = 0.0  # whoever is in there and waits for other writers gives up now
        with self._mutex:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            self.bell.close()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Nobody here is in the middle of a write: a process that is stopped now holds up no other."""
        rests = self._mutex.acquire(timeout=FORK_LIMIT)
        try:
            yield
        finally:
            if rests:
                self._mutex.release()

    def before_fork(self) -> bool:
        """Close the connection, and let nobody in until the fork is over. False when somebody is in there for too long.

        SQLite counts file locks per process. A child that inherits an open connection believes that it has the
        parent's locks; when the parent closes, it deletes the log under the child, and both go on in different files.
        """
        if not self._mutex.acquire(timeout=FORK_LIMIT):
            return False
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        return True

    def after_fork_in_parent(self) -> None:
        self._mutex.release()

    def after_fork(self) -> None:
        """SQLite forbids even closing an inherited connection: keep it out of the garbage collector's reach."""
        if self._connection is not None:  # the mutex was not to be had before the fork
            _inherited.append(self._connection)
        self._connection = None
        self._mutex = threading.RLock()
        self.bell.after_fork()


_inherited: list[sqlite3.Connection] = []
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_forking: list[Database] = []


def _before_fork() -> None:
    _forking.extend(database for database in list(_databases) if database.before_fork())


def _after_fork_in_parent() -> None:
    while _forking:
        _forking.pop().after_fork_in_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_forking.clear)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing of what is done in the block, which may have ended it itself."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        if connection.in_transaction:
            connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _add_notes(connection: sqlite3.Connection) -> None:
    """The first tables had none. Somebody else may be about to add them too."""
    if connection.execute(_HAS_NOTES).fetchone() == (0,):
        with _transaction(connection):
            if connection.execute(_HAS_NOTES).fetchone() == (0,):
                connection.execute("ALTER TABLE leasehold ADD COLUMN note TEXT")


def _code(error: sqlite3.Error) -> int:
    """The primary result code; extended ones have it in the low byte."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _identity(path: str) -> tuple[int, int] | None:
    """Which file this is: a database that was deleted or replaced under us must be opened anew."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        import subprocess

        found = subprocess.run(["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True)
        if found.returncode == 0 and found.stdout.strip():
            return found.stdout.strip()
    raise StoreNotReady("the SQLite store needs the machine's boot id, which this platform does not tell: use a server")


def refuse_network(path: str) -> None:
    """Neither SQLite's locks, nor the boot id, nor FIFOs reach across machines."""
    try:
        with open("/proc/self/mountinfo") as file:
            found = network_mount(os.path.dirname(path), file.readlines())
    except OSError:
        return
    if found and found[0] not in _NETWORK:
        log(WARNING, "%s is on %s at %s: if that is a network file system, leases on it are not safe", path, *found)
    elif found:
        raise StoreNotReady(
            f"{path} is on a network file system ({found[0]} at {found[1]}), where SQLite's locks cannot be trusted: "
            "put it on a local disk, or use a server"
        )


def network_mount(folder: str, mounts: list[str]) -> tuple[str, str] | None:
    """Type and place of the file system that the folder is on, if that is a network's, or may be (FUSE)."""
    best = ("", "")
    for line in mounts:
        fields = line.split()
        point = fields[4].replace("\\040", " ")
        if f"{folder}/".startswith(f"{point.rstrip('/')}/") and len(point) >= len(best[1]):
            best = (fields[fields.index("-") + 1], point)
    return best if best[0] in _NETWORK or best[0].startswith("fuse") else None
