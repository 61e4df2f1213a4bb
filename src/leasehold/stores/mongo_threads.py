"""The MongoDB store's driver for threads: pymongo's MongoClient, and a thread that waits for calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

import pymongo
from pymongo import CursorType, MongoClient, ReturnDocument
from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError

from .. import clock
from ..log import INFO, log
from ..protocol import Busy, Steps, T, run_steps
from . import mongo_link
from .mongo import Change, ChangeMany, Find, FindPage, Ring, Sender, Tidy
from .mongo_link import AFTER, AS_IT_IS, Access, Link, is_race, is_refusal, translate

_inherited: list[Any] = []
"""Clients of a parent process: neither used nor closed nor collected here."""


class MongoThreads:
    def __init__(self, link: Link) -> None:
        self.on_ring: Callable[[str], None] = lambda attempt: None
        self._link = link
        self._reset()

    def _reset(self) -> None:
        self.session = mongo_link.new_session()
        self._mutex = threading.Lock()
        self._access: Access | None = None
        self._listener: threading.Thread | None = None
        self._listening: set[str] = set()
        self._up = False
        self._refused = False
        self._called = False
        self._stop = threading.Event()

    def run(self, steps: Steps[T], limit: float) -> T:
        # In a context of its own: a pymongo.timeout() around the caller's code is not about our calls.
        return Context().run(self._run, steps, limit)

    def _run(self, steps: Steps[T], limit: float) -> T:
        try:
            with pymongo.timeout(limit):
                return run_steps(steps, self._handle)
        except PyMongoError as error:
            raise translate(error, self._link.where) from error

    def _open(self) -> Access:
        access = self._access
        if access is None:
            with self._mutex:
                access = self._access
                if access is None:
                    client = self._link.client or MongoClient(self._link.url, appname="leasehold", connect=False)
                    access = self._access = Access(self._link, client)
        return access

    def _handle(self, request: Any) -> Any:
        access = self._access or self._open()
        match request:
            case Sender():
                return self.session, clock.now_us()
            case Change(name, stages, upsert, holder):
                try:
                    return access.leases.find_one_and_update(
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
                return access.leases.bulk_write(access.updates(changes), ordered=False).modified_count
            case Find(names):
                return access.leases.find(**access.found(names)).to_list()
            case FindPage(prefix, after, most):
                return access.leases.find(**access.page(prefix, after), limit=most).to_list()
            case Ring(calls):
                return self._ring(access, calls)
            case Tidy():
                return self._tidy(access)
        raise TypeError(request)

    def _ring(self, access: Access, calls: Sequence[tuple[str, str]]) -> None:
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
                self._called = self._make_calls(access)
            if self._called:
                access.calls.insert_many(documents, ordered=False)
        except PyMongoError:
            pass  # whoever waits looks again by itself

    def _make_calls(self, access: Access) -> bool:
        """Make the capped collection if it is not there. It must have a document, or no cursor can wait at its end."""
        may_insert = True
        try:
            access.database.create_collection(
                access.calls.name, capped=True, size=mongo_link.CALLS_SIZE, check_exists=False
            )
        except OperationFailure as error:
            if error.code == 13:
                may_insert = False  # an insert could make it, uncapped
            elif error.code != 48:
                raise
        if access.calls.find_one({}, {"_id": 1}) is None:
            if not may_insert:
                return False
            access.calls.insert_one({"to": ""})
        return True

    def _tidy(self, access: Access) -> None:
        if access.index_key in mongo_link.indexed:
            return
        try:
            with pymongo.timeout(mongo_link.INDEX_LIMIT):
                access.leases.create_index("purge", name=mongo_link.INDEX, expireAfterSeconds=0)
        except PyMongoError as error:
            if error.timeout or not isinstance(error, OperationFailure):
                return  # another time
            mongo_link.warn_of_index(self._link, error)
        mongo_link.indexed.add(access.index_key)

    # Calls.

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        """Have the listener started; True once its cursor is open."""
        if self._refused:
            return False
        self._listening.add(attempt)
        if self._listener is None:
            with self._mutex:
                if self._listener is None and not self._stop.is_set():
                    self._listener = threading.Thread(target=self._listen, name="leasehold-mongodb", daemon=True)
                    self._listener.start()
        return self._up

    def forget(self, attempt: str) -> None:
        self._listening.discard(attempt)

    def _listen(self) -> None:
        pauses = mongo_link.reopen_pauses()
        while not self._stop.is_set():
            try:
                access = self._open()
                if not access.awaits or not self._make_calls(access):
                    self._refuse("this client has one connection only, or the collection of calls is not there")
                    return
                try:
                    self._follow(access)
                except OperationFailure as error:
                    if error.code != mongo_link.NOT_CAPPED:
                        raise
                    # An insert after somebody had dropped the collection has made it anew.
                    access.database.command("convertToCapped", access.calls.name, size=mongo_link.CALLS_SIZE)
                pauses = mongo_link.reopen_pauses()
            except PyMongoError as error:
                if is_refusal(error):
                    self._refuse(str(translate(error, f"{self._link.where}.calls")))
                    return
            self._stop.wait(next(pauses))

    def _follow(self, access: Access) -> None:
        """Read calls until the cursor breaks or the driver is closed. What was called meanwhile is still there."""
        cursor = access.calls.find({"to": self.session}, cursor_type=CursorType.TAILABLE_AWAIT)
        cursor.max_await_time_ms(int(access.awaits * 1000))
        try:
            while not self._stop.is_set():
                for call in cursor:
                    self.on_ring(call["attempt"])
                    if self._stop.is_set():
                        return
                if not cursor.alive:
                    return
                if not self._up:
                    self._up = True
                    self._wake_all()  # a call that an election undid is not there any more
        finally:
            self._up = False
            self._wake_all()
            if not self._stop.is_set():
                cursor.close()

    def _wake_all(self) -> None:
        """Whoever waits has to look by itself."""
        for attempt in list(self._listening):
            self.on_ring(attempt)

    def _refuse(self, reason: str) -> None:
        self._refused = True
        log(INFO, "waiters poll: no calls through MongoDB (%s)", reason, event="no_push", reason=reason)

    # The end.

    def close(self) -> None:
        self._stop.set()
        with self._mutex:
            listener, self._listener = self._listener, None
            access, self._access = self._access, None
        if access is None:
            return
        if listener is not None and listener is not threading.current_thread():
            Context().run(self._poke, access)
            listener.join(1.0)
        if self._link.client is None:
            access.client.close()

    def _poke(self, access: Access) -> None:
        """Have the listener's request answered, so that it sees that it is to end."""
        try:
            with pymongo.timeout(1.0):
                access.calls.insert_one({"to": self.session, "attempt": ""})
        except PyMongoError:
            pass

    def after_fork(self) -> None:
        if self._access is not None and self._link.client is None:
            _inherited.append(self._access.client)
        self._reset()
