"""The driver for threads: the caller's own waits for kazoo's answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import getgeneratorlocals
from typing import Any

from ...core import clock
from ...core.protocol import Ask, Busy, Steps, T, run_steps
from ...errors import StoreError, StoreUnavailable
from ..common.main_thread import MainThread
from ..common.turns import Turns
from .errors import concerns_node, translate
from .guard import Guard
from .requests import Apart, Calls, ClientCall, Up
from .sessions import SessionPool, ZooKeeperSession
from .stakes import Stakes
from .url import ZooKeeperAddress

ASKING = 32
"""So many new acquires are under way at a time, in the order in which they came. All of a crowd's would keep the
interpreter from the threads by which leases are renewed."""


class ZooKeeperClients:
    """What a ``Locks`` has of ZooKeeper, for its store and its driver."""

    def __init__(self, address: ZooKeeperAddress) -> None:
        self.where = address.where
        self.pool = SessionPool(address)
        self.stakes = Stakes(self.pool)
        self.guard = Guard(self.pool, self.stakes)

    def listens(self, attempt: str) -> bool:
        """Watches were set when it was asked: they work as long as the connection does."""
        stake = self.stakes.find(attempt)
        return stake is None or stake.session.up

    def close(self) -> None:
        self.pool.close(self._left_in)
        self.guard.end()

    def _left_in(self, session: ZooKeeperSession) -> Sequence[str] | None:
        """What was offered to another is to be there for that one, until the server ends the session by itself. Then
        what there is of others, to be removed; None if nothing was offered."""
        here = [stake for stake in list(self.stakes.by_attempt.values()) if stake.session is session]
        if not any(stake.offered and stake.held and not stake.ended for stake in here):
            return None
        doomed = [path for path, where in list(self.stakes.doomed.items()) if where is session]
        return [*doomed, *(stake.path for stake in here if stake.path and not stake.offered)]

    def after_fork(self) -> None:
        self.pool.reset()
        self.stakes.reset()
        self.guard.reset()


class ZooKeeperThreads:
    def __init__(self, clients: ZooKeeperClients) -> None:
        self.clients = clients
        self._reset()

    def _reset(self) -> None:
        self._main = MainThread(self.clients.where)
        self._turns = Turns(ASKING)

    @property
    def on_ring(self) -> Callable[..., None]:
        return self.clients.stakes.on_ring

    @on_ring.setter
    def on_ring(self, function: Callable[..., None]) -> None:
        self.clients.stakes.on_ring = function

    def run(self, steps: Steps[T], limit: float) -> T:
        # Of kazoo, an exception out of a signal handler leaves half of its work undone, and half of what is noted here
        # about a stake.
        return self._main.run(self._in_turn, steps, limit)

    def _in_turn(self, steps: Steps[T], limit: float) -> T:
        """Whoever has asked before does not wait behind those who ask: it may be about to claim."""
        ask = getgeneratorlocals(steps).get("ask")
        if not isinstance(ask, Ask) or ask.attempt in self.clients.stakes.by_attempt:
            return self._run(steps, limit)
        ends = clock.now() + limit
        try:
            turn = self._turns.take(limit / 2)
        except TimeoutError as error:
            raise StoreUnavailable(f"{self.clients.where}: too many concurrent calls in this process") from error
        try:
            return self._run(steps, ends - clock.now())
        finally:
            self._turns.over(turn)

    def _run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit
        where = self.clients.where

        def handle(request: Any) -> Any:
            sent = Sent(request, where, ends)
            for each in reversed(sent.answers):  # one wait for all: they come in order
                each.wait(sent.left(each))
            return sent.result()

        return run_steps(steps, handle)

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        return self.clients.listens(attempt)

    def forget(self, attempt: str) -> None:
        self._main.soon(lambda: self.clients.stakes.forget(attempt))

    def after_fork(self) -> None:
        self._reset()
        self.clients.after_fork()

    def close(self) -> None:
        self._main.do(self.clients.close)
        self._main.end()


class Sent:
    """A request of the store's that was sent, and the answers to come."""

    def __init__(self, request: Up | Calls | Apart, where: str, ends: float) -> None:
        self._request, self._where, self._ends = request, where, ends
        self.answers: list[Any]
        if isinstance(request, Up):
            self.answers = [request.session.when_up()]
        elif isinstance(request, Calls):
            if not request.session.up:
                raise request.session.refused or StoreUnavailable(f"{where}: the connection is lost")
            self.answers = [self._send(request.session, call) for call in request.calls]
        else:
            self._ends = clock.now() + min(request.within, (ends - clock.now()) / min(2, len(request.calls)))
            self.answers = [self._send(session, call) for session, call in request.calls]

    def _send(self, session: ZooKeeperSession, call: ClientCall) -> Any:
        try:
            if not session.up:  # kazoo would keep it until the connection is back
                raise StoreUnavailable(f"{self._where}: the connection is lost")
            return call(session.client)
        except Exception as error:
            answer = session.handler.async_result()
            answer.set_exception(error)
            return answer

    def left(self, answer: Any) -> float:
        return 0.0 if answer.ready() else max(0.0, self._ends - clock.now())

    def result(self) -> Any:
        """What the store is answered. Raises what is no answer."""
        if isinstance(self._request, Apart):
            return [self._kept(answer) for answer in self.answers]
        results = [self._read(answer) for answer in self.answers]
        return None if isinstance(self._request, Up) else results

    def _kept(self, answer: Any) -> Any:
        try:
            return self._read(answer)
        except StoreError as error:
            return error

    def _read(self, answer: Any) -> Any:
        if not answer.ready():
            failure = self._request.session.failure if isinstance(self._request, Up) else None
            why = "" if failure is None else f": {failure}"
            raise StoreUnavailable(f"{self._where}: no server with a quorum answers{why}") from failure
        if answer.exception is not None:
            return self._checked(answer.exception)
        value = answer.value
        if isinstance(value, list) and value and isinstance(value[0], Exception):  # a transaction that was refused
            return [self._checked(error) for error in value]
        return value

    def _checked(self, error: BaseException) -> BaseException:
        """An error that is an answer."""
        if isinstance(error, StoreError):
            raise error
        if concerns_node(error):
            return error
        raise translate(error, self._where) from error
