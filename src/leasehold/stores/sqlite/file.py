"""Which file a URL names, and whether its machine and file system can hold leases: boot id, containers, networks."""

from __future__ import annotations

import os
import sys

from ...core.log import WARNING, log
from ...core.protocol import refuse_options
from ...errors import StoreNotReady

_NETWORK = {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "9p", "virtiofs"}
_NETWORK |= {"fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.ceph", "ocfs2", "gfs2", "vboxsf"}


def default_url() -> str:
    """The URL of the default database, a file in the user's state folder. Raises StoreNotReady without a folder."""
    folder = _default_folder()
    if folder is None:
        raise StoreNotReady(
            "this user has no home folder for the default database: set LEASEHOLD_URL, HOME or XDG_STATE_HOME "
            "(an absolute path), or give the URL of a store"
        )
    return f"sqlite:///{folder.replace('%', '%25').replace('?', '%3F')}/leases.db"


def _default_folder() -> str | None:
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the XDG specification says to ignore a relative path
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(os.path.normpath(state), "leasehold") if os.path.isabs(state) else None


CONTAINER_ADVICE = (
    "its leases exclude only processes of this container; to exclude others, set LEASEHOLD_URL to a file on a shared "
    "volume, or to a server"
)
_warned: list[bool] = []


def in_container() -> bool:
    if os.environ.get("container") or os.environ.get("KUBERNETES_SERVICE_HOST"):  # noqa: SIM112
        return True
    return any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")))


def is_default(path: str) -> bool:
    folder = _default_folder()  # compared by realpath: it may be reached through a symbolic link
    return folder is not None and os.path.realpath(os.path.dirname(path)) == os.path.realpath(folder)


def warn_in_container(path: str) -> None:
    if not _warned and in_container():
        _warned.append(True)
        log(WARNING, "the default database %s is used in a container: %s", path, CONTAINER_ADVICE, event="container")


def path_of(url: str) -> str:
    """The absolute path of the file that a URL names. Raises ValueError."""
    path = refuse_options(url)
    if not path.startswith("/"):
        raise ValueError("bad SQLite URL: write sqlite:///relative.db or sqlite:////absolute.db")
    path = path[1:]
    if "%" in path:
        from urllib.parse import unquote

        path = unquote(path)
    if not path or path.endswith("/"):
        raise ValueError("bad SQLite URL: the name of the file is missing, as in sqlite:///leases.db")
    if path == ":memory:":
        raise ValueError("bad SQLite URL: a database in memory cannot be shared; use memory:// for tests")
    if "\0" in path:
        raise ValueError("bad SQLite URL: the path has a NUL character")
    return os.path.abspath(path)


def identity(path: str) -> tuple[int, int] | None:
    """Device and inode of the file, to notice that it was deleted or replaced; None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def boot_id() -> str:
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
    raise StoreNotReady(
        "the SQLite store needs the machine's boot id, which this platform does not provide: use a server instead"
    )


def refuse_network(path: str) -> None:
    """Raise StoreNotReady for a network file system: SQLite's locks, the boot id and FIFOs work on one machine only."""
    try:
        with open("/proc/self/mountinfo") as file:
            found = network_mount(os.path.dirname(path), file.readlines())
    except OSError:
        return
    if found and found[0] not in _NETWORK:
        log(WARNING, "%s is on %s at %s: if that is a network file system, leases on it are not safe", path, *found)
    elif found:
        raise StoreNotReady(
            f"{path} is on a network file system ({found[0]} at {found[1]}), where SQLite's locks are not reliable: "
            "move it to a local disk, or use a server"
        )


def network_mount(folder: str, mounts: list[str]) -> tuple[str, str] | None:
    """Type and mount point of the folder's file system, if it is a network file system, or may be one (FUSE)."""
    best = ("", "")
    for line in mounts:
        fields = line.split()
        point = fields[4].replace("\\040", " ")
        if f"{folder}/".startswith(f"{point.rstrip('/')}/") and len(point) >= len(best[1]):
            best = (fields[fields.index("-") + 1], point)
    return best if best[0] in _NETWORK or best[0].startswith("fuse") else None
