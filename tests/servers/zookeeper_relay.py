"""A relay before a ZooKeeper server that reads what clients send: it counts requests, and holds one back."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from .proxy import Direction, Proxy

NAMES = {
    **{1: "create", 15: "create", 2: "delete", 3: "exists", 4: "get", 5: "set", 8: "children", 12: "children"},
    **{9: "sync", 11: "ping", 13: "check", 14: "multi", 100: "auth", 101: "set watches", 102: "sasl", -11: "close"},
}
CONNECT = "connect"


class Request(NamedTuple):
    """One request of a client. ``parts`` are those of a transaction."""

    what: str
    path: str = ""
    parts: tuple[Request, ...] = ()
    connection: int = 0
    at: float = 0.0
    size: int = 0
    watch: bool = False


class Hold:
    """The first request that fits is kept back, and with it what the connection sends after it."""

    def __init__(self, fits: Callable[[Request], bool]) -> None:
        self.fits = fits
        self.arrived, self.let_go = threading.Event(), threading.Event()
        self.before: Callable[[], object] = lambda: None
        """Called as it arrives."""


class ZooKeeperRelay(Proxy):
    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.requests: list[Request] = []
        self._holds: list[Hold] = []
        self._connections_made = 0

    def hold(self, fits: Callable[[Request], bool]) -> Hold:
        self._holds.append(Hold(fits))
        return self._holds[-1]

    def of(self, name: str) -> list[Request]:
        """What was asked about a name so far."""
        found = f"/{name}"
        return [each for each in list(self.requests) if _about(each, found)]

    async def _carry(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if direction != "to_server":
            return await super()._carry(direction, reader, writer)
        self._connections_made += 1
        number, first = self._connections_made, True
        while True:
            try:
                head = await reader.readexactly(4)
                body = await reader.readexactly(struct.unpack("!i", head)[0])
            except asyncio.IncompleteReadError:
                break
            request = _read(body, number, first)
            first = False
            if request.what != "ping":
                self.requests.append(request)
            for each in list(self._holds):
                if each.fits(request):
                    self._holds.remove(each)
                    each.before()
                    each.arrived.set()
                    while not each.let_go.is_set():  # noqa: ASYNC110  # it is set in another thread
                        await asyncio.sleep(0.005)
            await self._leave_to_pass(direction, self._loop.time())
            writer.write(head + body)
            await writer.drain()
        writer.write_eof()
        return None


def moves(request: Request) -> bool:
    """Whether it takes a node from one session to another."""
    return [part.what for part in request.parts] == ["delete", "create"]


def lists(name: str) -> Callable[[Request], bool]:
    return lambda request: request.what == "children" and request.path.endswith(f"/{name}")


def _about(request: Request, found: str) -> bool:
    return found in request.path or any(found in part.path for part in request.parts)


def _read(body: bytes, connection: int, first: bool) -> Request:
    told = {"connection": connection, "at": time.monotonic(), "size": len(body)}
    if first:
        return Request(CONNECT, **told)  # type: ignore[arg-type]
    kind = struct.unpack_from("!i", body, 4)[0]
    what = NAMES.get(kind, str(kind))
    if what == "multi":
        return Request(what, parts=tuple(_parts(body, 8)), **told)  # type: ignore[arg-type]
    if kind > 15 or kind in (11, -11):
        return Request(what, **told)  # type: ignore[arg-type]
    path, at = _text(body, 8)
    watch = what in ("exists", "get", "children") and body[at : at + 1] == b"\1"
    return Request(what, path, watch=watch, **told)  # type: ignore[arg-type]


def _parts(body: bytes, at: int) -> list[Request]:
    found = []
    while True:
        kind, done, _ = struct.unpack_from("!i?i", body, at)
        at += 9
        if done:
            return found
        path, at = _text(body, at)
        if NAMES[kind] in ("create", "set"):
            at += 4 + max(0, struct.unpack_from("!i", body, at)[0])
        if NAMES[kind] == "create":
            entries = struct.unpack_from("!i", body, at)[0]
            at += 4
            for _ in range(entries):
                at += 4
                at = _text(body, _text(body, at)[1])[1]
        at += 4
        found.append(Request(NAMES[kind], path))


def _text(body: bytes, at: int) -> tuple[str, int]:
    size = struct.unpack_from("!i", body, at)[0]
    return body[at + 4 : at + 4 + size].decode(), at + 4 + size
