"""Waking other processes of this machine, and noticing their death, with a FIFO per session.

A session opens its FIFO for reading *and* writing before its name stands in any record, so there is a reader exactly
as long as the session (or a child it handed the descriptor to) lives. Who opens it for writing learns at once whether
there still is one (ENXIO: no), can send it an attempt to wake, and, polling the descriptor, is told by the kernel
(POLLERR) when the last reader goes.

A FIFO that is missing or may not be opened tells nothing: such a session counts as alive. So does one that somebody
could have planted who may not write the database: the folder has to be a real one, writable by nobody else than the
database is, and folder and FIFO have to be of us, of the database's owner, or of its group if that may write it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import partial

from ..log import WARNING, log

_SIZE = 32
POKE = "-" * _SIZE
"""What a session sends itself to look up from its poll."""
MEND_FOLDER = "stop all programs that use the database, then delete this folder"
EVERYBODY = ""
"""What a message that no session sends is read as: :data:`leasehold.protocol.ALL`."""
_HEX = frozenset("0123456789abcdef")
_OPEN = os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) if os.name == "posix" else 0
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Descriptor:
    """A file descriptor, or none (-1), which is closed with this object at the latest.

    An exception out of a signal handler comes between any two calls. So each of the two calls that matter is one, made
    in C: there is no moment at which nobody owns what was opened, or at which something is closed twice."""

    __slots__ = ("_owned",)

    def __init__(self) -> None:
        self._owned: list[int] = []

    @property
    def fd(self) -> int:
        return self._owned[-1] if self._owned else -1

    def open(self, path: str, flags: int, folder: int | None = None) -> None:
        self._owned.extend(map(partial(os.open, flags=flags, dir_fd=folder), (path,)))

    def close(self) -> None:
        next(map(os.close, map(self._owned.pop, (0,) if self._owned else ())), None)

    __del__ = close


class Untrusted(Exception):
    """The folder of the FIFOs is not what it should be: says why."""


def is_id(text: object) -> bool:
    """Whether this has the form of a session's or an attempt's id: nothing else is used as a file's name, or sent."""
    return isinstance(text, str) and len(text) == _SIZE and _HEX.issuperset(text)


def open_folder(folder: str, database: os.stat_result) -> Descriptor:
    """The folder's descriptor. Raises Untrusted when somebody could write it who may not write the database."""
    found = Descriptor()
    try:
        found.open(folder, os.O_RDONLY | _FOLDER)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Untrusted("it is not a directory") from None
        raise
    _check_folder(folder, os.fstat(found.fd), database)
    return found


def _check_folder(folder: str, found: os.stat_result, database: os.stat_result) -> None:
    if not _may_write(found, database) or (
        found.st_uid not in (os.geteuid(), database.st_uid)
        and os.stat(os.path.dirname(folder)).st_mode & 0o002  # a stranger may have made it, with its parent's group
    ):
        raise Untrusted(f"user {found.st_uid}, who has no write access to the database, may have created it")
    beyond = found.st_mode & 0o022 & ~database.st_mode
    if found.st_gid != database.st_gid:
        beyond |= found.st_mode & 0o020
    if beyond:
        raise Untrusted("users without write access to the database can write to it")


def _may_write(found: os.stat_result, database: os.stat_result) -> bool:
    """Whether the owner of this file may write the database: only members of a group can give it to their group."""
    return (
        found.st_uid in (os.geteuid(), database.st_uid)
        or (bool(database.st_mode & 0o020) and found.st_gid == database.st_gid)
        or bool(database.st_mode & 0o002)
    )


class Doorbell:
    """The FIFO of one session, and how to reach those of others."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.session = ""
        """Empty when there can be no FIFO here; then nobody is woken and expiry does all."""
        self._fifo = Descriptor()
        self._database: os.stat_result | None = None
        self._warned = False

    def open(self, database: os.stat_result) -> None:
        """Make the FIFO. ``database`` is what is known of that file: who may use it may ring here."""
        self._database = database
        if not hasattr(os, "mkfifo"):
            return
        session = os.urandom(16).hex()
        fifo = Descriptor()
        try:
            self._make_folder(database)
            folder = open_folder(self.folder, database)
            try:
                os.mkfifo(session, 0o600, dir_fd=folder.fd)
                fifo.open(session, os.O_RDWR | _OPEN, folder.fd)
                _own(fifo.fd, database, database.st_mode & 0o666)
                self._fifo, self.session = fifo, session  # both or, when interrupted, none: then it is tried again
            finally:
                if self.session != session:
                    with suppress(OSError):
                        os.unlink(session, dir_fd=folder.fd)
                folder.close()
        except Untrusted as error:
            self._warn(error)
        except OSError:
            pass  # nobody can wake us

    @property
    def fd(self) -> int:
        """Where calls arrive; -1 without a FIFO."""
        return self._fifo.fd

    def _make_folder(self, database: os.stat_result) -> None:
        try:
            os.mkdir(self.folder, 0o700)
        except FileExistsError:
            return
        made = Descriptor()
        made.open(self.folder, os.O_RDONLY | _FOLDER)
        mode = database.st_mode
        _own(made.fd, database, mode & 0o777 | (mode & 0o444) >> 2)
        made.close()

    def _warn(self, why: Untrusted) -> None:
        if not self._warned:
            self._warned = True
            message = "%s is not trusted: %s. Waiters poll instead. To mend it, %s"
            log(WARNING, message, self.folder, why, MEND_FOLDER, event="untrusted_folder")

    def can_be_rung(self) -> bool:
        """Whether others still find our FIFO: somebody may have removed the folder."""
        try:
            there, here = os.stat(self.path, follow_symlinks=False), os.fstat(self.fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def ring(self, session: str, attempt: str) -> bool:
        """Wake ``attempt`` of ``session``. False when the session is dead."""
        if not is_id(attempt):
            return True
        reached = self._reach(session)
        if reached is not None and reached.fd >= 0:
            try:
                os.write(reached.fd, attempt.encode())
            except OSError:
                pass  # full: it has enough to wake up for; or it has just died: it will be found out
            reached.close()
        return reached is not None

    def alive(self, session: str) -> bool:
        """False when the session is known to be dead."""
        reached = self._reach(session)
        if reached is not None:
            reached.close()
        return reached is not None

    def watch(self, session: str) -> Descriptor | None:
        """What polls as error when the session dies; None when it has; without a descriptor when that can't be told."""
        return self._reach(session)

    def read(self) -> list[str]:
        """The attempts that were called since the last read."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return []
        if len(data) % _SIZE:  # sessions write whole messages: this is not one's, and may hide some that are
            return [EVERYBODY]
        return [data[at : at + _SIZE].decode("ascii", "replace") for at in range(0, len(data), _SIZE)]

    def poke(self) -> None:
        try:
            os.write(self.fd, POKE.encode())
        except OSError:
            pass  # full: the reader is awake anyhow

    def close(self) -> None:
        if self.fd >= 0:
            self._fifo.close()
            self.unlink()

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.session)

    def unlink(self) -> None:
        if self.session:
            try:
                os.unlink(self.path)
            except OSError:
                pass

    def after_fork(self) -> None:
        """In the child: let go of the parent's FIFO, or the parent would seem to live as long as the child."""
        self._fifo.close()
        self.session = ""

    def tidy(self, before: float) -> None:
        """Remove FIFOs of sessions that died before ``before`` (wall-clock seconds; only the file's age)."""
        if self.fd < 0 or self._database is None:
            return
        try:
            folder = open_folder(self.folder, self._database)
        except (OSError, Untrusted):
            return
        try:
            for session in filter(is_id, os.listdir(folder.fd)):
                try:
                    found = os.stat(session, dir_fd=folder.fd, follow_symlinks=False)
                    if found.st_mtime < before and not self.alive(session):
                        os.unlink(session, dir_fd=folder.fd)
                except OSError:
                    continue
        finally:
            folder.close()

    def _reach(self, session: str) -> Descriptor | None:
        """The FIFO of a session that lives; None when it is dead; without a descriptor when that can't be told."""
        unknown = Descriptor()
        if not is_id(session) or session == self.session or self._database is None or not hasattr(os, "mkfifo"):
            return unknown
        try:
            folder = open_folder(self.folder, self._database)
        except OSError:
            return unknown
        except Untrusted as error:
            self._warn(error)
            return unknown
        try:
            found = os.stat(session, dir_fd=folder.fd, follow_symlinks=False)
            if not stat.S_ISFIFO(found.st_mode):
                return unknown
            fifo = Descriptor()
            try:
                fifo.open(session, os.O_WRONLY | _OPEN, folder.fd)
            except OSError as error:
                return None if error.errno == errno.ENXIO and _may_write(found, self._database) else unknown
            return fifo if stat.S_ISFIFO(os.fstat(fifo.fd).st_mode) else unknown  # else it was swapped since
        except OSError:
            return unknown
        finally:
            folder.close()


def _own(fd: int, database: os.stat_result, mode: int) -> None:
    """Give what we have just made the owner, if we may, the group and the rights of the database."""
    made = os.fstat(fd)
    if made.st_uid != os.geteuid() or (stat.S_ISFIFO(made.st_mode) and made.st_nlink != 1):
        return  # swapped since: not ours to give away
    try:
        if (made.st_uid, made.st_gid) != (database.st_uid, database.st_gid):
            os.fchown(fd, database.st_uid if made.st_uid == 0 else -1, database.st_gid)
    except OSError:
        if made.st_gid != database.st_gid:
            mode &= ~0o070  # of another group
    os.fchmod(fd, mode)
