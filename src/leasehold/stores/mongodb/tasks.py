"""The MongoDB store's driver for asyncio: pymongo's AsyncMongoClient, and a task that waits for calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

import pymongo
from bson.errors import BSONError
from pymongo import AsyncMongoClient
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError

from ...core import clock
from ...core.log import DEBUG, log
from ...core.protocol import Busy, Steps, T, await_steps
from ...errors import StoreNotReady, StoreUnavailable
from ..common.main_thread import name_of
from ..common.waiting import Wake
from .calls import Listener, MakeWay, Pause
from .lanes import Lane
from .link import CLOSING, Access, Link, changed_of_some, is_race, translate
from .requests import Change, ChangeMany, Find, FindPage, Ring, Sender, Tidy
from .threads import MongoThreads
from .waiting import Waiters

_left_behind: list[Any] = []
"""Clients of a parent process, or of a loop that was closed with tasks in it: neither used nor collected here."""


async def _take_turn(lane: Lane, limit: float) -> None:
    if not lane.turns.locked():
        await lane.turns.acquire()  # at once
        return
    try:
        async with asyncio.timeout(lane.patience(limit)):
            await lane.turns.acquire()
    except TimeoutError:
        raise lane.no_turn(limit) from None


async def _until_cancelled(work: Coroutine[Any, Any, None]) -> None:
    """Do it in a task that is cancelled until it has ended: pymongo may swallow that while it sends, and then waits
    for an answer, as long as no call comes. A loop could not end meanwhile."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task})
    finally:
        if not task.cancelling():
            task.cancel()
        while not task.done():
            await asyncio.wait({task}, timeout=0.2)  # to let it clean up
            task.cancel()
    task.result()


def _drop(client: Any, loop: asyncio.AbstractEventLoop) -> bool:
    """Close the sockets of a client whose loop is gone: pymongo itself would await that, in this loop.

    False if the client must not be collected either."""
    try:
        servers = [] if client._topology is None else client._topology._servers.values()
        for server in servers:
            monitor = server._monitor
            for pool in (server.pool, monitor._pool, monitor._rtt_monitor._pool):
                for connection in pool.conns:
                    _close_socket(connection.conn)
        client._closed = True  # or it complains when it is collected
    except Exception as error:  # a pymongo that is different inside: no reason for the caller to fail
        log(DEBUG, "connections of a closed event loop are left open: %r", error)
        return False
    # A loop that was closed without cancelling its tasks has pymongo's among them, which complain when collected.
    return not asyncio.all_tasks(loop)


def _close_socket(line: Any) -> None:
    if not hasattr(line, "get_conn"):
        line.close()  # before pymongo 4.12 it is the socket
        return
    # The transport would ask its loop to close it; TLS is a transport on top of another.
    transport = line.get_conn.transport
    if (tls := getattr(transport, "_ssl_protocol", None)) is not None:
        transport._closed = True
        transport = tls._transport
    if (socket := getattr(transport, "_sock", None)) is not None:
        transport._sock, transport._closing = None, True
        socket.close()


def _is_deaf(client: Any) -> bool:
    """Whether somebody has cancelled the tasks by which a client learns how its servers are, with all the others.
    pymongo starts them once: such a client loses a server with its next failure, and never finds it again."""
    try:
        return any(server._monitor._executor._task.cancelled() for server in client._topology._servers.values())
    except AttributeError:  # not begun yet, or a pymongo that is different inside
        return False


async def _close_client(client: Any) -> None:
    with pymongo.timeout(CLOSING):
        await client.close()


class MongoTasks(Listener):
    client = AsyncMongoClient
    semaphore = asyncio.Semaphore

    def __init__(self, link: Link, waiters: Waiters | None = None) -> None:
        super().__init__(link, waiters)
        self._at_exit: MongoThreads | None = None

    def _reset(self) -> None:
        super()._reset()
        self._cancelled: dict[asyncio.Task[Any], str | None] = {}  # under way, and what each is about
        self._listener: asyncio.Task[None] | None = None
        self._replaced: set[asyncio.Task[None]] = set()  # clients that are being closed

    def _open(self) -> Access:
        access = super()._open()
        self._loop = asyncio.get_running_loop()
        if getattr(access.client, "_loop", None) not in (None, self._loop):
            raise StoreNotReady(
                f"{self._link.where}: this AsyncMongoClient belongs to another event loop: create a client and a Locks "
                "in this loop"
            )
        return access

    async def run(self, steps: Steps[T], limit: float) -> T:
        """In a task and a context of its own: cancelling the caller does not tear the connection, and a
        pymongo.timeout() around the caller's code is not about our calls."""
        ends = clock.now() + limit
        if self._cancelled and (before := self._cancelled_of(name_of(steps))):
            # What was asked for first happens first, also if nobody waits for it any more. Other names need not care.
            _, pending = await asyncio.wait(before, timeout=limit)
            limit = ends - clock.now()
            if pending or limit <= 0:
                raise StoreUnavailable(f"{self._link.where}: timed out waiting for an earlier, cancelled call")
        lane = self._lane(steps)
        if lane is not None:
            await _take_turn(lane, limit)
        task = asyncio.get_running_loop().create_task(self._run(steps, ends), context=Context())
        if lane is not None:
            task.add_done_callback(lambda task: lane.done(not task.cancelled() and task.exception() is None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._cancelled[task] = name_of(steps)
                task.add_done_callback(self._cancelled_done)
            raise

    def _cancelled_of(self, name: str | None) -> list[asyncio.Task[Any]]:
        return [task for task, about in self._cancelled.items() if about == name is not None]

    def _cancelled_done(self, task: asyncio.Task[Any]) -> None:
        self._cancelled.pop(task, None)
        if not task.cancelled():
            task.exception()  # nobody asks for it any more

    async def _run(self, steps: Steps[T], ends: float) -> T:
        left = ends - clock.now()
        if left <= 0:
            raise StoreUnavailable(f"{self._link.where}: timed out before the call was sent")
        try:
            with pymongo.timeout(left):
                return await await_steps(steps, self._handle)
        except (PyMongoError, BSONError) as error:
            self._replace_if_deaf()
            raise translate(error, self._link.where) from error

    def _replace_if_deaf(self) -> None:
        """Have the next call make a client anew, if it is ours to make."""
        access = self._access
        if access is not None and self._link.client is None and not self._stopped and _is_deaf(access.client):
            self._access = None
            closing = asyncio.get_running_loop().create_task(_close_client(access.client), context=Context())
            self._replaced.add(closing)
            closing.add_done_callback(self._replaced.discard)

    async def _handle(self, request: Any) -> Any:
        access = self._open()
        match request:
            case Sender():
                return self.session, clock.now_us()
            case Change(name, stages, upsert, where, waiter):
                try:
                    return await access.change(name, stages, upsert, where, waiter)
                except DuplicateKeyError as error:
                    if is_race(error):
                        return None
                    raise
            case ChangeMany(changes):
                try:
                    return (await access.change_many(changes)).modified_count
                except BulkWriteError as error:
                    return changed_of_some(error, len(changes))
            case Find(names, settled):
                return await access.find(names, settled)
            case FindPage(prefix, after, most):
                return await access.find_page(prefix, after, most)
            case Wake(attempt):
                return self.on_ring(attempt)
            case Ring(call):
                return await await_steps(self._pass_on(call), self._act)
            case Tidy():
                return await await_steps(self._tidy(), self._act)
        raise TypeError(request)

    async def _act(self, request: Any) -> Any:
        match request:
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case MakeWay():
                return await asyncio.sleep(0)
        return await request(self._open())

    # Calls.

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        """Have the listener started; True once its cursor was open when this attempt last asked."""
        if self._refused:
            return False
        self._listening.add(attempt)
        # One that is done though nobody stopped it was cancelled, with every other task there was.
        if (self._listener is None or self._listener.done()) and not self._stopped:
            hear = _until_cancelled(await_steps(self._hear(), self._act))
            self._listener = asyncio.get_running_loop().create_task(hear, context=Context())
        return self._hears(attempt)

    # The end.

    async def close(self) -> None:
        self._stopped = True
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()
            await asyncio.wait({listener}, timeout=1.0)
        if under_way := self._cancelled.keys() | self._replaced:
            await asyncio.wait(under_way, timeout=1.0)
        if self._access is not None and self._link.client is None:
            await _close_client(self._access.client)

    def new_loop(self) -> None:
        if self._access is not None and self._link.client is None and _drop(self._access.client, self._loop):
            self._reset()
        else:
            self.after_fork()

    def after_fork(self) -> None:
        if self._access is not None and self._link.client is None:
            _left_behind.append(self._access.client)
        self._reset()

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        if self._link.url is None:
            raise StoreUnavailable(f"{self._link.where}: an AsyncMongoClient cannot be used without its event loop")
        if self._at_exit is None:
            self._at_exit = MongoThreads(self._link)
        try:
            return self._at_exit.run(steps, limit)
        except RuntimeError as error:  # no threads any more, and so no connections
            raise StoreUnavailable(f"{self._link.where}: {error}") from error

    def close_at_exit(self) -> None:
        if self._at_exit is not None:
            self._at_exit.close()
