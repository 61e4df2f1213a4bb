"""Waking other processes of this machine, and noticing their death, with a FIFO per session.

A session opens its FIFO for reading *and* writing before its name stands in any record, so there is a reader exactly
as long as the session (or a child it handed the descriptor to) lives. Who opens it for writing learns at once whether
there still is one (ENXIO: no), can send it an attempt to wake, and, polling the descriptor, is told by the kernel
(POLLERR) when the last reader goes.

A FIFO that is missing or may not be opened tells nothing: such a session counts as alive. So does one that somebody
could have planted who may not write the database: the folder has to be a real one of ours or of the database's owner,
writable by nobody else than the database is, and a FIFO proves a death only if its owner is one of these two.
"""

from __future__ import annotations

import errno
import os
import stat

from ..log import WARNING, log

_SIZE = 32
POKE = "-" * _SIZE
"""What a session sends itself to look up from its poll."""
EVERYBODY = ""
"""What a message that no session sends is read as: :data:`leasehold.protocol.ALL`."""
_HEX = frozenset("0123456789abcdef")
_OPEN = os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) if os.name == "posix" else 0
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Untrusted(Exception):
    """The folder of the FIFOs is not what it should be: says why."""


def is_id(text: object) -> bool:
    """Whether this has the form of a session's or an attempt's id: nothing else is used as a file's name, or sent."""
    return isinstance(text, str) and len(text) == _SIZE and _HEX.issuperset(text)


def open_folder(folder: str, database: os.stat_result) -> int:
    """A descriptor of the folder. Raises Untrusted when somebody could write it who may not write the database."""
    try:
        fd = os.open(folder, os.O_RDONLY | _FOLDER)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Untrusted("it is not a directory") from None
        raise
    try:
        _check_folder(os.fstat(fd), database)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_folder(found: os.stat_result, database: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), database.st_uid):
        raise Untrusted(f"it belongs to user {found.st_uid}, neither to this user nor to the owner of the database")
    beyond = found.st_mode & 0o022 & ~database.st_mode
    if found.st_gid != database.st_gid:
        beyond |= found.st_mode & 0o020
    if beyond:
        raise Untrusted("users may write it who may not write the database")


class Doorbell:
    """The FIFO of one session, and how to reach those of others."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.session = ""
        """Empty when there can be no FIFO here; then nobody is woken and expiry does all."""
        self.fd = -1
        self._database: os.stat_result | None = None
        self._warned = False

    def open(self, database: os.stat_result) -> None:
        """Make the FIFO. ``database`` is what is known of that file: who may use it may ring here."""
        self._database = database
        if not hasattr(os, "mkfifo"):
            return
        session = os.urandom(16).hex()
        made = False
        try:
            self._make_folder(database)
            folder = open_folder(self.folder, database)
            try:
                os.mkfifo(session, 0o600, dir_fd=folder)
                made = True
                fd = os.open(session, os.O_RDWR | _OPEN, dir_fd=folder)
                self.fd = fd
                _own(fd, database, database.st_mode & 0o666)
                self.session = session
            finally:
                if made and not self.session:
                    os.unlink(session, dir_fd=folder)
                os.close(folder)
        except Untrusted as error:
            self._warn(error)
        except OSError:
            self.close()

    def _make_folder(self, database: os.stat_result) -> None:
        try:
            os.mkdir(self.folder, 0o700)
        except FileExistsError:
            return
        fd = os.open(self.folder, os.O_RDONLY | _FOLDER)
        try:
            mode = database.st_mode
            _own(fd, database, mode & 0o777 | (mode & 0o444) >> 2)
        finally:
            os.close(fd)

    def _warn(self, why: Untrusted) -> None:
        if not self._warned:
            self._warned = True
            message = "%s is not trusted: %s. Waiters fall back to polling. Stop who uses the database, and remove it"
            log(WARNING, message, self.folder, why, event="untrusted_folder")

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
        fd = self._reach(session)
        if fd is None:
            return False
        if fd >= 0:
            try:
                os.write(fd, attempt.encode())
            except OSError:
                pass  # full: it has enough to wake up for; or it has just died: it will be found out
            finally:
                os.close(fd)
        return True

    def alive(self, session: str) -> bool:
        """False when the session is known to be dead."""
        fd = self._reach(session)
        if fd is not None and fd >= 0:
            os.close(fd)
        return fd is not None

    def watch(self, session: str) -> int | None:
        """A descriptor that polls as error when the session dies; None when it has; -1 when that can't be told."""
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
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
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
        fd, self.fd = self.fd, -1
        self.session = ""
        if fd >= 0:
            os.close(fd)

    def tidy(self, before: float) -> None:
        """Remove FIFOs of sessions that died before ``before`` (wall-clock seconds; only the file's age)."""
        if self.fd < 0 or self._database is None:
            return
        try:
            folder = open_folder(self.folder, self._database)
        except (OSError, Untrusted):
            return
        try:
            for session in filter(is_id, os.listdir(folder)):
                try:
                    found = os.stat(session, dir_fd=folder, follow_symlinks=False)
                    if found.st_mtime < before and not self.alive(session):
                        os.unlink(session, dir_fd=folder)
                except OSError:
                    continue
        finally:
            os.close(folder)

    def _reach(self, session: str) -> int | None:
        if not is_id(session) or session == self.session or self._database is None or not hasattr(os, "mkfifo"):
            return -1
        try:
            folder = open_folder(self.folder, self._database)
        except OSError:
            return -1
        except Untrusted as error:
            self._warn(error)
            return -1
        try:
            found = os.stat(session, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISFIFO(found.st_mode):
                return -1
            try:
                fd = os.open(session, os.O_WRONLY | _OPEN, dir_fd=folder)
            except OSError as error:
                proves = error.errno == errno.ENXIO and found.st_uid in (os.geteuid(), self._database.st_uid)
                return None if proves else -1
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                return fd
            os.close(fd)  # swapped since
            return -1
        except OSError:
            return -1
        finally:
            os.close(folder)


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
