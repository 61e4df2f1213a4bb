"""PostgreSQL."""

import os
import shutil
import signal
import struct
from pathlib import Path

from . import find, reaper
from .base import NotReady, Server
from .wire import HOST, Wire

ROOT = os.getuid() == 0


def query(port: int, sql: str, timeout: float = 10.0) -> str | None:
    """Run SQL as user and in database `postgres`; the first column of the last row, if there is any."""
    parameters = b"user\0postgres\0database\0postgres\0\0"
    text = sql.encode() + b"\0"
    value = None
    with Wire(port, timeout) as wire:
        wire.send(struct.pack("!ii", 8 + len(parameters), 196608) + parameters)
        wire.send(struct.pack("!ci", b"Q", 4 + len(text)) + text)
        ready = 0  # "ready for a query" comes once after the log-in and once after the query
        while ready < 2:
            kind, size = struct.unpack("!ci", wire.read(5))
            body = wire.read(size - 4)
            match kind:
                case b"E":
                    raise NotReady(body.decode(errors="replace"))
                case b"D":  # number of columns, then length and bytes of each
                    length = struct.unpack_from("!i", body, 2)[0]
                    value = body[6 : 6 + length].decode() if length >= 0 else None
                case b"Z":
                    ready += 1
    return value


class PostgreSQL(Server):
    """User `postgres` needs no password."""

    kind = "postgresql"
    stop_signal = signal.SIGINT  # the fast way: it does not wait for clients to leave

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{self.address}/postgres"

    def prepare(self) -> None:
        initdb = find.require(self.kind, "initdb")
        how = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync")
        if ROOT:
            for folder in (self.folder, self.data):
                shutil.chown(folder, "nobody", "nogroup")
        self.run(initdb, f"--pgdata={self.data}", *how)

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            # A server that is killed loses nothing without it: the kernel still has what was written.
            "fsync": "off",
            "dynamic_shared_memory_type": "mmap",  # files in the data folder, which are removed with it
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [self.program, "-D", str(self.data), *options]

    def kill(self) -> None:
        super().kill()
        reaper.sweep_shared_memory(self.folder)

    def ping(self, timeout: float) -> None:
        query(self.port, "SELECT 1", timeout)

    def before(self) -> list[str]:
        """PostgreSQL refuses to be run by root, so that root runs it as nobody."""
        if not ROOT:
            return []
        who = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        above = Path(self.program).resolve().parents
        if all(folder.stat().st_mode & 0o001 for folder in above):
            return who
        # The program is in a folder that only root may enter, such as root's home: take that right along, also
        # for access(2), which PostgreSQL asks before it starts one of its own programs.
        rights = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup"]
        return [*who, *rights]


class Standby(PostgreSQL):
    """A streaming replica of a running server."""

    def __init__(self, primary: PostgreSQL) -> None:
        super().__init__()
        self._primary = primary

    def prepare(self) -> None:
        if ROOT:
            for folder in (self.folder, self.data):
                shutil.chown(folder, "nobody", "nogroup")
        self.data.chmod(0o700)
        copy = ("--checkpoint=fast", "--no-sync", "--write-recovery-conf")
        source = (f"--host={HOST}", f"--port={self._primary.port}", "--username=postgres")
        self.run(find.require(self.kind, "pg_basebackup"), f"--pgdata={self.data}", *copy, *source)
