"""A TCP relay that counts what clients send to the server: each Redis command; each SQL statement, which is sent on a
connection when the last one is answered, in however many pieces; else each piece that arrives."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from typing import Self

COMMAND = re.compile(rb"\*\d+\r\n\$")
PORT = re.compile(r":(\d+)")


def relayed(target: str) -> int | None:
    """The port of the one server whose clients can be sent through a relay. None: it is a file, there are several, or
    clients ask it where it is and go there."""
    ports = PORT.findall(target)
    return int(ports[0]) if len(ports) == 1 and "replicaSet=" not in target else None


class Relay:
    """Listens on ``port`` and passes everything on to the server's port, and back."""

    def __init__(self, server: int, target: str) -> None:
        self.messages = 0
        self._redis = target.startswith("redis")
        self._sql = target.startswith(("postgresql", "mysql", "mariadb"))
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        begun = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop)
        self._listening = begun.result()
        self.port: int = self._listening.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._listening.close()
        carrying = asyncio.all_tasks() - {asyncio.current_task()}
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)

    def settled(self) -> int:
        """The count, once nothing has been sent for half a second; or after 20 s, if many look by themselves."""
        for _ in range(40):
            before = self.messages
            time.sleep(0.5)
            if self.messages == before:
                break
        return self.messages

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._server)
        asked = [False]
        ways = self._carry(reader, back, asked, True), self._carry(there, writer, asked, False)
        with contextlib.suppress(asyncio.CancelledError):  # by our end: the connections end with us
            await asyncio.gather(*ways, return_exceptions=True)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[bool], asks: bool
    ) -> None:
        """``asked``: whether the client was the last to say something on this connection."""
        try:
            while data := await reader.read(1 << 16):
                if asks and self._redis:
                    self.messages += len(COMMAND.findall(data))
                elif asks and not (self._sql and asked[0]):
                    self.messages += 1
                asked[0] = asks
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()
