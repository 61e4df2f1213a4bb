"""A TCP proxy between a client and a server that plays a bad network, switched live by the test.

It runs in a thread with an event loop of its own, so that tests of threads and of tasks use it alike. What a
mode keeps back is not lost but *late*, as TCP has it: bytes sent into a partition arrive once it has healed,
and an old write that comes late is what a lease must survive. To lose them, end the partition by `reset`.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Literal, Self

from . import ports
from .wire import HOST

Direction = Literal["to_server", "to_client"]
BOTH: frozenset[Direction] = frozenset({"to_server", "to_client"})


class Proxy:
    """Listens on `port` and passes all to the server's port and back, until told otherwise."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = ports.take()
        self._open = BOTH
        self._delay = 0.0
        self._resetting = False
        self._changed = asyncio.Event()  # replaced with each change of mode
        self._writers: set[asyncio.StreamWriter] = set()
        self._unclosed: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}", daemon=True)

    # --- the modes, each in force when the call returns -----------------------------------------------------

    def all_well(self) -> None:
        """Pass everything at once, what was kept back first."""
        self._switch(BOTH)

    def delay(self, seconds: float) -> None:
        """Pass everything, each piece this much later than it came, in each direction."""
        self._switch(BOTH, delay=seconds)

    def blackhole(self) -> None:
        """Pass nothing. Connections are accepted, by the kernel, but nobody ever answers."""
        self._switch(frozenset())

    def only(self, direction: Direction) -> None:
        """Pass one direction. With `to_server` the server does as asked and the client never hears."""
        self._switch(frozenset({direction}))

    def reset(self) -> None:
        """Break every connection, and every new one, by RST."""
        self._switch(frozenset(), resetting=True)

    # --- life -----------------------------------------------------------------------------------------------

    def start(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        ports.give_back(self.port)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _switch(self, open_: frozenset[Direction], delay: float = 0.0, resetting: bool = False) -> None:
        async def switch() -> None:
            self._open, self._delay, self._resetting = open_, delay, resetting
            if resetting:
                for writer in self._writers:
                    _reset(writer)
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

        self._call(switch())

    # --- in the loop's thread -------------------------------------------------------------------------------

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, self.port)

    async def _end(self) -> None:
        self._server.close()
        for _ in range(3):  # what was accepted a moment ago becomes a connection that can be ended
            await asyncio.sleep(0)
        for task in self._connections:
            task.cancel()
        while self._connections:
            for writer in self._unclosed:  # its other end may not take what is left: nobody waits for that
                writer.transport.abort()
            await asyncio.wait(self._connections, timeout=0.05)
        for _ in range(3):
            await asyncio.sleep(0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its first byte to its last."""
        ends = [writer]
        self._unclosed.add(writer)
        try:
            if self._resetting:
                _reset(writer)
                return
            from_server, to_server = await asyncio.open_connection(HOST, self.target)
            ends.append(to_server)
            self._unclosed.add(to_server)
            self._writers.update(ends)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry("to_server", reader, to_server))
                both.create_task(self._carry("to_client", from_server, writer))
        except* OSError:  # one end broke the connection, or there is no server: so does the other end see it
            for end in ends:
                _reset(end)
        finally:
            self._writers.difference_update(ends)
            for end in ends:
                end.close()
            for end in ends:  # it may be cancelled here
                with contextlib.suppress(OSError):
                    await end.wait_closed()
                self._unclosed.discard(end)

    async def _carry(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Bytes of one direction. Reading and writing are apart, so that a delay does not slow the stream."""
        kept: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1000)

        async def read() -> None:
            data = b"?"
            while data:  # the empty one, which ends the stream, is passed on like the others
                data = await reader.read(65536)
                await kept.put((self._loop.time(), data))

        async def write() -> None:
            data = b"?"
            while data:
                came, data = await kept.get()
                await self._leave_to_pass(direction, came)
                if data:
                    writer.write(data)
                    await writer.drain()
                else:
                    writer.write_eof()

        async with asyncio.TaskGroup() as halves:
            halves.create_task(read())
            halves.create_task(write())

    async def _leave_to_pass(self, direction: Direction, came: float) -> None:
        """Wait until the mode, whichever it is by then, lets a piece through that came at this time."""
        while True:
            wait = came + self._delay - self._loop.time() if direction in self._open else None
            if wait is not None and wait <= 0:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close at once, by RST instead of the orderly way."""
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
