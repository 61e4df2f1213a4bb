"""MariaDB and MySQL, which differ only in how their data folder is made."""

import os
import struct
from typing import ClassVar

from . import find
from .base import NotReady, Server
from .wire import HOST, Wire

# Capabilities of our side: protocol 4.1, authentication of today, and its plugin named.
CLIENT = 0x200 | 0x8000 | 0x80000
UTF8MB4 = 45


def query(port: int, sql: str, timeout: float = 10.0) -> str | None:
    """Run one statement as root; the first column of the first row, if there is any."""
    with Wire(port, timeout) as wire:
        _receive(wire)  # the server's greeting
        # 23 unused bytes, the user, a password of no bytes; the server may name another plugin for that.
        log_in = struct.pack("<IIB23x", CLIENT, 1 << 24, UTF8MB4) + b"root\0\0caching_sha2_password\0"
        _send(wire, 1, log_in)
        if _receive(wire)[:1] == b"\xfe":
            _send(wire, 3, b"")
            _receive(wire)
        _send(wire, 0, b"\x03" + sql.encode())
        columns = _receive(wire)[0]
        if not columns:  # done, and nothing to read
            return None
        for _ in range(columns + 1):  # their descriptions and an end mark
            _receive(wire)
        row = _receive(wire)
        if row[:1] in (b"\xfe", b"\xfb"):  # no row, or NULL
            return None
        return row[1 : 1 + row[0]].decode()


def _send(wire: Wire, number: int, body: bytes) -> None:
    wire.send(struct.pack("<I", len(body) | number << 24) + body)


def _receive(wire: Wire) -> bytes:
    body = wire.read(int.from_bytes(wire.read(4)[:3], "little"))
    if body[:1] == b"\xff":
        raise NotReady(body[3:].decode(errors="replace"))
    return body


class MariaDB(Server):
    """User `root` needs no password; the database is `leasehold`."""

    kind = "mariadb"
    # Commits are written, but the disk is not waited for: a server that is killed still loses nothing.
    quick: ClassVar[list[str]] = ["--innodb-flush-log-at-trx-commit=2"]

    @property
    def url(self) -> str:
        return f"{self.kind}://root@{self.address}/leasehold"

    def prepare(self) -> None:
        how = ("--auth-root-authentication-method=normal", "--skip-test-db")
        self.run(find.require(self.kind, "mariadb-install-db"), *self._data(), *how)

    def command(self) -> list[str]:
        where = [f"--port={self.port}", f"--bind-address={HOST}", f"--socket={self.data / 'socket'}"]
        return [self.program, *self._data(), *where, f"--pid-file={self.data / 'pid'}"]

    def ping(self, timeout: float) -> None:
        # The database that the url names is there as soon as the server is ready.
        query(self.port, "CREATE DATABASE IF NOT EXISTS leasehold", timeout)

    def _data(self) -> list[str]:
        # Root may run it, but must say so.
        who = ["--user=root"] if os.getuid() == 0 else []
        return ["--no-defaults", f"--datadir={self.data}", *who, *self.quick]


class MySQL(MariaDB):
    kind = "mysql"
    quick: ClassVar[list[str]] = [*MariaDB.quick, "--skip-log-bin", "--innodb-doublewrite=OFF"]

    def prepare(self) -> None:
        self.run(self.program, *self._data(), "--initialize-insecure")

    def command(self) -> list[str]:
        return [*super().command(), "--mysqlx=OFF", "--secure-file-priv=NULL"]
