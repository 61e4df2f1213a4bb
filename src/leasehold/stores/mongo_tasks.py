"""The MongoDB store's driver for asyncio: pymongo's AsyncMongoClient, and a task that waits for calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

import pymongo
from pymongo import AsyncMongoClient, CursorType, ReturnDocument
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError

from .. import clock
from ..errors import StoreUnavailable
from ..log import INFO, log
from ..protocol import Busy, Steps, T
from . import mongo_link
from .mongo import Change, ChangeMany, Find, FindPage, Ring, Sender, Tidy
from .mongo_link import AFTER, AS_IT_IS, Access, Link, is_race, is_refusal, translate
from .mongo_threads import MongoThreads

_left_behind: list[Any] = []
"""Clients of a parent process or of a closed loop: neither used nor closed nor collected here."""


class MongoTasks:
    def __init__(self, link: Link) -> None:
        self.on_ring: Callable[[str], None] = lambda attempt: None
        self._link = link
        self._at_exit: MongoThreads | None = None
        self._reset()

    def _reset(self) -> None:
        self.session = mongo_link.new_session()
        self._access: Access | None = None
        self._cancelled: set[asyncio.Task[Any]] = set()
        self._listener: asyncio.Task[None] | None = None
        self._listening: set[str] = set()
        self._up = False
        self._refused = False
        self._called = False
        self._closed = False

    async def run(self, steps: Steps[T], limit: float) -> T:
        """In a task and a context of its own: cancelling the caller does not tear the connection, and a
        pymongo.timeout() around the caller's code is not about our calls."""
        if self._cancelled:
            # What was asked for first happens first, also if nobody waits for it any more.
            await asyncio.wait(self._cancelled, timeout=limit)
        task = asyncio.get_running_loop().create_task(self._run(steps, limit), context=Context())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._cancelled.add(task)
                task.add_done_callback(self._cancelled_done)
            raise

    def _cancelled_done(self, task: asyncio.Task[Any]) -> None:
        self._cancelled.discard(task)
        if not task.cancelled():
            task.exception()  # nobody asks for it any more

    async def _run(self, steps: Steps[T], limit: float) -> T:
        try:
            with pymongo.timeout(limit):
                return await self._run_steps(steps)
        except PyMongoError as error:
            raise translate(error, self._link.where) from error

    async def _run_steps(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                try:
                    answer = await self._handle(request)
                except Exception as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _open(self) -> Access:
        if self._access is None:
            client = self._link.client or AsyncMongoClient(self._link.url, appname="leasehold", connect=False)
            self._access = Access(self._link, client)
        return self._access

    async def _handle(self, request: Any) -> Any:
        access = self._open()
        match request:
            case Sender():
                return self.session, clock.now_us()
            case Change(name, stages, upsert, holder):
                try:
                    return await access.leases.find_one_and_update(
                        access.filter(name, holder),
                        stages,
                        projection=AFTER,
                        upsert=upsert,
                        return_document=ReturnDocument.AFTER,
                        collation=AS_IT_IS,
                    )
                except DuplicateKeyError as error:
                    if is_race(error):
                        return None
                    raise
            case ChangeMany(changes):
                return (await access.leases.bulk_write(access.updates(changes), ordered=False)).modified_count
            case Find(names):
                return await access.leases.find(**access.found(names)).to_list()
            case FindPage(prefix, after, most):
                return await access.leases.find(**access.page(prefix, after), limit=most).to_list()
            case Ring(calls):
                return await self._ring(access, calls)
            case Tidy():
                return await self._tidy(access)
        raise TypeError(request)

    async def _ring(self, access: Access, calls: Sequence[tuple[str, str]]) -> None:
        documents = []
        for session, attempt in calls:
            if session == self.session:
                self.on_ring(attempt)
            else:
                documents.append({"to": session, "attempt": attempt})
        if not documents:
            return
        try:
            if not self._called:
                self._called = await self._make_calls(access)
            if self._called:
                await access.calls.insert_many(documents, ordered=False)
        except PyMongoError:
            pass  # whoever waits looks again by itself

    async def _make_calls(self, access: Access) -> bool:
        """Make the capped collection if it is not there. It must have a document, or no cursor can wait at its end."""
        may_insert = True
        try:
            await access.database.create_collection(
                access.calls.name, capped=True, size=mongo_link.CALLS_SIZE, check_exists=False
            )
        except OperationFailure as error:
            if error.code == 13:
                may_insert = False  # an insert could make it, uncapped
            elif error.code != 48:
                raise
        if await access.calls.find_one({}, {"_id": 1}) is None:
            if not may_insert:
                return False
            await access.calls.insert_one({"to": ""})
        return True

    async def _tidy(self, access: Access) -> None:
        if access.index_key in mongo_link.indexed:
            return
        try:
            with pymongo.timeout(mongo_link.INDEX_LIMIT):
                await access.leases.create_index("purge", name=mongo_link.INDEX, expireAfterSeconds=0)
        except PyMongoError as error:
            if error.timeout or not isinstance(error, OperationFailure):
                return  # another time
            mongo_link.warn_of_index(self._link, error)
        mongo_link.indexed.add(access.index_key)

    # Calls.

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        """Have the listener started; True once its cursor is open."""
        if self._refused:
            return False
        self._listening.add(attempt)
        if self._listener is None and not self._closed:
            self._listener = asyncio.get_running_loop().create_task(self._listen(), context=Context())
        return self._up

    def forget(self, attempt: str) -> None:
        self._listening.discard(attempt)

    async def _listen(self) -> None:
        pauses = mongo_link.reopen_pauses()
        while True:
            try:
                access = self._open()
                if not access.awaits or not await self._make_calls(access):
                    self._refuse("this client has one connection only, or the collection of calls is not there")
                    return
                try:
                    await self._follow(access)
                except OperationFailure as error:
                    if error.code != mongo_link.NOT_CAPPED:
                        raise
                    # An insert after somebody had dropped the collection has made it anew.
                    await access.database.command("convertToCapped", access.calls.name, size=mongo_link.CALLS_SIZE)
                pauses = mongo_link.reopen_pauses()
            except PyMongoError as error:
                if is_refusal(error):
                    self._refuse(str(translate(error, f"{self._link.where}.calls")))
                    return
            await asyncio.sleep(next(pauses))

    async def _follow(self, access: Access) -> None:
        """Read calls until the cursor breaks. What was called meanwhile is still there then."""
        cursor = access.calls.find({"to": self.session}, cursor_type=CursorType.TAILABLE_AWAIT)
        cursor.max_await_time_ms(int(access.awaits * 1000))
        try:
            while True:
                async for call in cursor:
                    self.on_ring(call["attempt"])
                if not cursor.alive:
                    return
                if not self._up:
                    self._up = True
                    self._wake_all()  # a call that an election undid is not there any more
        finally:
            self._up = False
            self._wake_all()

    def _wake_all(self) -> None:
        """Whoever waits has to look by itself."""
        for attempt in list(self._listening):
            self.on_ring(attempt)

    def _refuse(self, reason: str) -> None:
        self._refused = True
        log(INFO, "waiters poll: no calls through MongoDB (%s)", reason, event="no_push", reason=reason)

    # The end.

    async def close(self) -> None:
        self._closed = True
        listener, self._listener = self._listener, None
        access, self._access = self._access, None
        if listener is not None:
            listener.cancel()
            await asyncio.wait({listener}, timeout=1.0)
        if self._cancelled:
            await asyncio.wait(self._cancelled, timeout=1.0)
        if access is not None and self._link.client is None:
            await access.client.close()

    def new_loop(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        if self._access is not None and self._link.client is None:
            _left_behind.append(self._access.client)
        self._reset()

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        if self._link.url is None:
            raise StoreUnavailable(f"{self._link.where}: its AsyncMongoClient cannot be used without its event loop")
        if self._at_exit is None:
            self._at_exit = MongoThreads(self._link)
        try:
            return self._at_exit.run(steps, limit)
        except RuntimeError as error:  # no threads any more, and so no connections
            raise StoreUnavailable(f"{self._link.where}: {error}") from error

    def close_at_exit(self) -> None:
        if self._at_exit is not None:
            self._at_exit.close()
