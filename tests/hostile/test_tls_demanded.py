"""The URL demands TLS, and the server has none: whoever listens there learns no password."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import closing

import pytest

import leasehold
from leasehold import aio

pytestmark = pytest.mark.timeout(60)

SECRET = "S3CRET-in-clear"
# Protocol 4.1, authentication by plugin, a database named in the answer; no TLS.
WITHOUT_TLS = 0x200 | 0x8000 | 0x80000 | 0x8


def packet(number: int, body: bytes) -> bytes:
    return struct.pack("<I", len(body) | number << 24) + body


def greeting(plugin: bytes) -> bytes:
    low, high = WITHOUT_TLS & 0xFFFF, WITHOUT_TLS >> 16
    facts = struct.pack("<I8sxHBHHB10x", 7, b"saltsalt", low, 45, 2, high, 21)
    return packet(0, b"\x0a8.0.36\0" + facts + b"saltsaltsalt\0" + plugin + b"\0")


SWITCH = packet(2, b"\xfemysql_clear_password\0")
GRANTED = packet(4, b"\0\0\0\x02\0\0\0")


class Listener:
    """Says these lines, each followed by what the client answers, keeps these answers, and hangs up."""

    def __init__(self, says: Sequence[bytes]) -> None:
        self._says = says
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.heard = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client: socket.socket) -> None:
        with client:
            client.settimeout(10)
            try:
                for line in self._says:
                    client.sendall(line)
                    self.heard += client.recv(65536)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                pass

    def close(self) -> None:
        self._socket.close()


MYSQL = {
    "asks for it afterwards": [greeting(b"mysql_native_password"), SWITCH, GRANTED],
    "asks for it at once": [greeting(b"mysql_clear_password"), GRANTED, b""],
}
URLS = {
    "postgresql": "postgresql://ann:{secret}@{at}/postgres?sslmode=require",
    "mongodb": "mongodb://ann:{secret}@{at}/db?tls=true&authMechanism=PLAIN&authSource=$external"
    "&serverSelectionTimeoutMS=1000",
    "redis": "rediss://ann:{secret}@{at}/0",
    "etcd": "etcd://ann:{secret}@{at}?tls=true",
    "zookeeper": "zookeeper://ann:{secret}@{at}?use_ssl=true&verify_certs=false",
}
SAYS = {"postgresql": b"N", "redis": b"+OK\r\n"}


def in_threads(url: str, errors: tuple[type[Exception], ...]) -> None:
    with leasehold.connect(url) as locks, pytest.raises(errors):
        locks.lock("name").acquire(timeout=1)


async def in_tasks(url: str, errors: tuple[type[Exception], ...]) -> None:
    async with aio.connect(url) as locks:
        with pytest.raises(errors):
            await locks.lock("name").acquire(timeout=1)


@pytest.mark.parametrize("world", ["threads", "asyncio"])
@pytest.mark.parametrize("says", MYSQL.values(), ids=MYSQL)
async def test_mysql_sends_nothing_to_a_server_without_tls(says: Sequence[bytes], world: str) -> None:
    with closing(Listener(says)) as listener:
        url = f"mysql://ann:{SECRET}@127.0.0.1:{listener.port}/db?ssl_verify_cert=false"
        errors = (leasehold.StoreNotReady,)
        await (in_tasks(url, errors) if world == "asyncio" else asyncio.to_thread(in_threads, url, errors))
    assert SECRET.encode() not in listener.heard, "SAFETY: the password was sent in clear text"
    assert not listener.heard


async def test_no_store_sends_a_password_to_a_server_without_tls() -> None:
    async def use(store: str) -> None:
        with closing(Listener([b"", SAYS.get(store, b"")])) as listener:
            url = URLS[store].format(secret=SECRET, at=f"127.0.0.1:{listener.port}")
            errors = (leasehold.StoreError, leasehold.AcquireTimeout)
            await asyncio.gather(asyncio.to_thread(in_threads, url, errors), in_tasks(url, errors))
        assert listener.heard, f"{store}: nothing was sent at all"
        assert SECRET.encode() not in listener.heard, f"SAFETY: {store} sent the password in clear text"

    await asyncio.gather(*map(use, URLS))
