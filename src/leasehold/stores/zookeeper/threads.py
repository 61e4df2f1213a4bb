"""The driver for threads: the caller's own waits for kazoo's answers."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getgeneratorlocals
from typing import Any

from kazoo.exceptions import KazooException

from ...core import clock
from ...core.protocol import Ask, Busy, Steps, T, run_steps
from ...errors import StoreError, StoreUnavailable
from ..common.main_thread import MainThread
from ..common.turns import Turns
from .errors import concerns_node, translate
from .link import Link
from .requests import Calls, Each, Up

ASKING = 32
"""So many new acquires are under way at a time, in the order in which they came. All of a crowd's would keep the
interpreter from the threads by which leases are renewed."""


class ZooKeeperThreads:
    def __init__(self, link: Link) -> None:
        self.link = link
        self._reset()

    def _reset(self) -> None:
        self._main = MainThread(self.link.where)
        self._turns = Turns(ASKING)

    @property
    def on_ring(self) -> Callable[..., None]:
        return self.link.on_ring

    @on_ring.setter
    def on_ring(self, function: Callable[..., None]) -> None:
        self.link.on_ring = function

    def run(self, steps: Steps[T], limit: float) -> T:
        # Of kazoo, an exception out of a signal handler leaves the lock of an answer owned, for which its own thread
        # then waits for good; and half of what the link notes about a stake undone.
        return self._main.run(self._in_turn, steps, limit)

    def _in_turn(self, steps: Steps[T], limit: float) -> T:
        """Whoever has asked before does not wait behind those who ask: it may be about to claim."""
        ask = getgeneratorlocals(steps).get("ask")
        if not isinstance(ask, Ask) or ask.attempt in self.link.stakes:
            return self._run(steps, limit)
        ends = clock.now() + limit
        try:
            turn = self._turns.take(limit / 2)
        except TimeoutError as error:
            raise StoreUnavailable(f"{self.link.where}: too many concurrent calls in this process") from error
        try:
            return self._run(steps, ends - clock.now())
        finally:
            self._turns.over(turn)

    def _run(self, steps: Steps[T], limit: float) -> T:
        ends = clock.now() + limit

        def handle(request: Any) -> Any:
            if isinstance(request, Each):
                return self._each(request, request.ends(ends))
            return self._answer(request, begin(self.link, request), ends)

        return run_steps(steps, handle)

    def _each(self, request: Each, ends: float) -> list[Any]:
        answers: list[Any] = []
        for each, results in begin_each(self.link, request):
            try:
                answers.append(results if isinstance(results, StoreError) else self._answer(each, results, ends))
            except StoreError as error:
                answers.append(error)
        return answers

    def _answer(self, request: Up | Calls, results: list[Any], ends: float) -> Any:
        answers = [self._wait(result, ends) for result in reversed(results)]  # one wait for all: they come in order
        return None if isinstance(request, Up) else answers[::-1]

    def _wait(self, result: Any, ends: float) -> Any:
        try:
            value = result.get(timeout=max(0.0, ends - clock.now()))
        except Exception as error:
            return answer(self.link, error)
        return checked(self.link, value)

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        return listens(self.link, attempt)

    def forget(self, attempt: str) -> None:
        self._main.soon(lambda: self.link.watching.forget(attempt))

    def after_fork(self) -> None:
        self._reset()
        self.link.after_fork()

    def close(self) -> None:
        self._main.do(self.link.close)
        self._main.end()


def begin(link: Link, request: Up | Calls) -> list[Any]:
    """Send what is asked for. Results of kazoo's, each to be waited for."""
    if isinstance(request, Up):
        return [request.session.when_up()]
    if not request.session.up:
        raise request.session.refused or StoreUnavailable(f"{link.where}: the connection is lost")
    try:
        return [request.session.submit(call) for call in request.calls]
    except KazooException as error:
        raise translate(error, link.where) from error


def begin_each(link: Link, request: Each) -> list[tuple[Up | Calls, list[Any] | StoreError]]:
    """Send all of it, before anything is waited for."""
    begun: list[tuple[Up | Calls, list[Any] | StoreError]] = []
    for each in request.requests:
        try:
            begun.append((each, begin(link, each)))
        except StoreError as error:
            begun.append((each, error))
    return begun


def answer(link: Link, error: Exception) -> Any:
    """An error that is an answer. Raises what is none."""
    if concerns_node(error):
        return error
    if type(error).__name__ == "KazooTimeoutError":
        raise StoreUnavailable(f"{link.where}: no server with a quorum answers") from error
    raise translate(error, link.where) from error


def checked(link: Link, value: Any) -> Any:
    """What a call has brought. Each part of a transaction that was refused has an error: raises what is no answer."""
    if isinstance(value, list) and value and isinstance(value[0], Exception):
        return [answer(link, error) for error in value]
    return value


def listens(link: Link, attempt: str) -> bool:
    """Watches were set when it was asked: they work as long as the connection does."""
    stake = link.find(attempt)
    return stake is None or stake.session.up
