"""What the SQL drivers for threads and for asyncio share: everything but the waiting.

A driver runs :meth:`Session.statements`, which turns the requests of a store operation into statements (and back), and
knows what to do about errors of the server: send it again, make the table, or give up with the right words.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from ..errors import StoreError, StoreUnavailable
from ..protocol import Steps, T
from .sql import Exchange, Pause
from .sql_dialect import Dialect, Result, Statement

Work: TypeAlias = Generator["Statement | Pause", "Result | None", T]
"""Yields statements and pauses; is sent results."""

POOL_SIZE = 4


class Refused(Exception):
    """The server has answered a statement with an error; the connection is as good as before."""

    def __init__(self, code: Any, message: str) -> None:
        super().__init__(message)
        self.code = code


class Broken(Exception):
    """The connection is lost, or its answer did not come in time: the outcome is unknown."""


class Session:
    """One driver's side: its dialect, its namespace, its address, and whom to tell of rings."""

    def __init__(self, dialect: Dialect, namespace: str) -> None:
        self.dialect = dialect
        self.namespace = namespace
        self.on_ring: Callable[[str], None] = lambda attempt: None
        self.unprepare: Callable[[], None] = lambda: None
        """Stop preparing statements: something between us and the server does not keep them."""
        self.renew()

    def renew(self) -> None:
        """A new address: in a new process, or in a forked one."""
        self.address = os.urandom(12).hex()

    def statements(self, steps: Steps[T]) -> Work[T]:
        """A store operation as statements."""
        try:
            request = next(steps)
            while True:
                try:
                    answer = yield from self._perform(request)
                except StoreError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()

    def check(self) -> Work[None]:
        """What a new connection has to say about its server and the table; makes the table if need be."""
        if not self.dialect.checked((yield from self._send(self.dialect.check()))):
            yield from self.create()

    def create(self) -> Work[None]:
        """Make the table and its index, where they are not there yet."""
        for sql in self.dialect.schema():
            try:
                yield Statement(sql, {})
            except Refused as refused:
                if refused.code in self.dialect.DENIED:
                    raise self.dialect.not_there() from refused
                if refused.code not in self.dialect.CREATED:
                    raise self.dialect.error(refused.code, str(refused)) from refused

    def _perform(self, request: Any) -> Work[Any]:
        if isinstance(request, Pause):
            yield request
            return None
        statement = self.dialect.statement(request, self.namespace, self.address)
        answer = self.dialect.answer(request, (yield from self._send(statement)), self.address)
        if isinstance(request, Exchange) and answer:
            yield from self._ring(request)
        return answer

    def _send(self, statement: Statement) -> Work[Result]:
        tries = 0
        while True:
            tries += 1
            try:
                result = yield statement
                assert result is not None
                return result
            except Refused as refused:
                code = refused.code
                if code in self.dialect.UNPREPARED and tries < 3:
                    self.unprepare()
                elif code in self.dialect.AGAIN and tries < 20:
                    # It was chosen to make way for another, and has done nothing.
                    if tries > 1:
                        yield Pause(random.random() * min(0.05, 0.001 * 2**tries))
                elif code in self.dialect.MISSING and tries == 1:
                    yield from self.create()
                else:
                    raise self.dialect.error(code, str(refused)) from (refused.__cause__ or refused)

    def _ring(self, request: Exchange) -> Work[None]:
        for session, attempt in request.rings:
            if session == self.address:
                self.on_ring(attempt)
        for session in dict.fromkeys(session for session, _ in request.rings if session and session != self.address):
            ask = self.dialect.knock(session)
            while ask is not None:
                try:
                    ask = self.dialect.knocked((yield ask))
                except Refused:
                    break  # it has gone, or we may not: it will look by itself


def broken(error: BaseException) -> StoreUnavailable:
    return StoreUnavailable(f"the connection to the server is lost or has no answer in time: {error}")
