"""Wakes other processes of this machine, and notices at once that one was killed, with a FIFO (named pipe) per session.

A session opens its FIFO for reading *and* writing before its name is in any record. So the FIFO has a reader exactly as
long as the session lives (or a child that inherited the descriptor). Another process opens the FIFO for writing: ENXIO
means that the session is dead; otherwise it writes the attempt to wake, or polls the descriptor and gets POLLERR from
the kernel when the last reader is gone.

A session counts as alive if its FIFO is missing, cannot be opened, or could have been planted by a user without write
access to the database. So the folder must be a real folder that no more users can write than the database, and folder
and FIFO must belong to this user, to the database's owner, or to its group if the group can write the database.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import partial

from ...core.log import WARNING, log

_SIZE = 32
POKE = "-" * _SIZE
"""What a session writes to its own FIFO to end its poll."""
MEND_FOLDER = "stop all programs that use the database, then delete this folder"
EVERYBODY = ""
"""What a malformed message is read as: :data:`leasehold.core.protocol.ALL`."""
_HEX = frozenset("0123456789abcdef")
_OPEN = os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) if os.name == "posix" else 0
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Descriptor:
    """A file descriptor, or none (-1). It is closed with this object at the latest.

    An exception from a signal handler can come between any two calls. So opening and closing are one call each, made in
    C: no descriptor is left without an owner, and none is closed twice."""

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
    """The folder of the FIFOs cannot be trusted. The message says why."""


def is_id(text: object) -> bool:
    """Whether this has the form of a session id or an attempt id. Nothing else is used as a file name, or sent."""
    return isinstance(text, str) and len(text) == _SIZE and _HEX.issuperset(text)


def open_folder(folder: str, database: os.stat_result) -> Descriptor:
    """The folder's descriptor. Raises Untrusted if a user without write access to the database could write it."""
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
        and os.stat(os.path.dirname(folder)).st_mode & 0o002  # another user may have created it
    ):
        raise Untrusted(f"user {found.st_uid}, who has no write access to the database, may have created it")
    beyond = found.st_mode & 0o022 & ~database.st_mode
    if found.st_gid != database.st_gid:
        beyond |= found.st_mode & 0o020
    if beyond:
        raise Untrusted("users without write access to the database can write to it")


def _may_write(found: os.stat_result, database: os.stat_result) -> bool:
    """Whether the owner of this file can write the database. Only members of a group can give a file to the group."""
    return (
        found.st_uid in (os.geteuid(), database.st_uid)
        or (bool(database.st_mode & 0o020) and found.st_gid == database.st_gid)
        or bool(database.st_mode & 0o002)
    )


class Doorbell:
    """The FIFO of this session, and access to the FIFOs of other sessions."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.session = ""
        """Empty if there can be no FIFO here. Then waiters get no wake-ups, and poll."""
        self._fifo = Descriptor()
        self._database: os.stat_result | None = None
        self._warned = False

    def open(self, database: os.stat_result) -> None:
        """Create the FIFO. ``database`` is the file's status: users of the database can write to this FIFO."""
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
                self._fifo, self.session = fifo, session  # both or, if interrupted, none: then open() is called again
            finally:
                if self.session != session:
                    with suppress(OSError):
                        os.unlink(session, dir_fd=folder.fd)
                folder.close()
        except Untrusted as error:
            self._warn(error)
        except OSError:
            pass  # no FIFO: this session gets no wake-ups

    @property
    def fd(self) -> int:
        """The descriptor on which wake-ups arrive; -1 without a FIFO."""
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
            message = "%s is not trusted: %s. Waiters poll instead. To fix it, %s"
            log(WARNING, message, self.folder, why, MEND_FOLDER, event="untrusted_folder")

    def can_be_rung(self) -> bool:
        """Whether other sessions still find this FIFO. The folder may have been removed."""
        try:
            there, here = os.stat(self.path, follow_symlinks=False), os.fstat(self.fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def ring(self, session: str, attempt: str) -> bool:
        """Wake ``attempt`` of ``session``. False if the session is dead."""
        if not is_id(attempt):
            return True
        reached = self._reach(session)
        if reached is not None and reached.fd >= 0:
            try:
                os.write(reached.fd, attempt.encode())
            except OSError:
                pass  # full: the session wakes up anyway; or it has just died, which a later check notices
            reached.close()
        return reached is not None

    def alive(self, session: str) -> bool:
        """False if the session is known to be dead."""
        reached = self._reach(session)
        if reached is not None:
            reached.close()
        return reached is not None

    def watch(self, session: str) -> Descriptor | None:
        """A descriptor that polls POLLERR when the session dies. None if the session is dead.

        If nothing is known of the session, the Descriptor has no file descriptor."""
        return self._reach(session)

    def read(self) -> list[str]:
        """The attempts to wake, since the last read."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return []
        if len(data) % _SIZE:  # not from a session, which writes whole messages; it may hide some
            return [EVERYBODY]
        return [data[at : at + _SIZE].decode("ascii", "replace") for at in range(0, len(data), _SIZE)]

    def poke(self) -> None:
        """End the poll of this session's listener."""
        try:
            os.write(self.fd, POKE.encode())
        except OSError:
            pass  # full: the listener wakes up anyway

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
        """Close the parent's FIFO in the child. Otherwise the parent would seem alive as long as the child lives."""
        self._fifo.close()
        self.session = ""

    def tidy(self, before: float) -> None:
        """Remove FIFOs of dead sessions that are older than ``before`` (wall-clock seconds, of the file)."""
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
        """The FIFO of a session, open for writing. None if the session is dead; no file descriptor if unknown."""
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
            return fifo if stat.S_ISFIFO(os.fstat(fifo.fd).st_mode) else unknown  # otherwise it was replaced meanwhile
        except OSError:
            return unknown
        finally:
            folder.close()


def _own(fd: int, database: os.stat_result, mode: int) -> None:
    """Give a new FIFO or folder the mode and, where this user may, the owner and group of the database."""
    made = os.fstat(fd)
    if made.st_uid != os.geteuid() or (stat.S_ISFIFO(made.st_mode) and made.st_nlink != 1):
        return  # replaced meanwhile, by another user
    try:
        if (made.st_uid, made.st_gid) != (database.st_uid, database.st_gid):
            os.fchown(fd, database.st_uid if made.st_uid == 0 else -1, database.st_gid)
    except OSError:
        if made.st_gid != database.st_gid:
            mode &= ~0o070  # it keeps another group than the database's
    os.fchmod(fd, mode)
