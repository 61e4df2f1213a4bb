"""What the main thread meets when it is interrupted while a server does not answer."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import leasehold
from leasehold.core.protocol import Ask
from leasehold.stores.common.main_thread import MainThread
from servers.mongodb import MongoDB
from servers.zookeeper import ZooKeeper

pytestmark = pytest.mark.timeout(120)


class SoftTimeLimit(Exception):
    """What a program has a signal handler raise."""


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise SoftTimeLimit

    main, before = threading.get_ident(), signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.server
@pytest.mark.parametrize("kind", [MongoDB, ZooKeeper])
def test_exception_of_a_signal_handler_comes_out_while_the_server_hangs(kind: Any, start_server: Any) -> None:
    server = start_server(kind)
    locks = leasehold.connect(server.url, namespace=secrets.token_hex(6))
    other = leasehold.connect(server.url, namespace=locks.namespace)
    held = other.lock("x", ttl=60).acquire(timeout=30)
    hang = threading.Timer(1, server.pause)
    hang.start()
    try:
        began = time.monotonic()
        with pytest.raises(SoftTimeLimit), interrupted_after(6):
            locks.lock("x").acquire(timeout=60)
        took = time.monotonic() - began
    finally:
        hang.join()
        server.resume()
    assert took < 9, "its own exception came late"
    held.release()
    assert locks.lock("x").acquire(timeout=30).release()
    locks.close()
    other.close()


def acquire(ask: Ask) -> Iterator[Any]:
    """Steps about a name, as a store makes them."""
    yield ask


def steps(name: str) -> Any:
    return acquire(Ask(name, "attempt", "owner", "lock", None, 30_000_000))


class Hangs:
    """A call that answers when it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def __call__(self, steps: Any, limit: float) -> str:
        self.begun.set()
        assert self.let_go.wait(60)
        return "late"


@pytest.fixture
def interrupted() -> Iterator[tuple[MainThread, Hangs]]:
    """A call about "x" was interrupted and is still under way."""
    main, hangs = MainThread("store"), Hangs()
    with pytest.raises(SoftTimeLimit), interrupted_after(0.5):
        main.run(hangs, steps("x"), 30)
    assert hangs.begun.wait(10)
    yield main, hangs
    hangs.let_go.set()
    main.end()


def answers(steps: Any, limit: float) -> str:
    return "answer"


def timed(function: Callable[[], object]) -> float:
    began = time.monotonic()
    function()
    return time.monotonic() - began


def test_call_about_another_name_does_not_wait_for_an_interrupted_one(interrupted: tuple[MainThread, Hangs]) -> None:
    main, _ = interrupted
    assert main.run(answers, steps("y"), 5) == "answer"


def test_call_about_the_same_name_waits_for_an_interrupted_one(interrupted: tuple[MainThread, Hangs]) -> None:
    main, hangs = interrupted
    with pytest.raises(leasehold.StoreUnavailable, match="interrupted call is still in progress"):
        main.run(answers, steps("x"), 0.5)
    hangs.let_go.set()
    assert main.run(answers, steps("x"), 30) == "answer"


def test_calls_without_an_answer_do_not_wait_for_an_interrupted_call(interrupted: tuple[MainThread, Hangs]) -> None:
    main, _ = interrupted
    done = threading.Event()
    assert timed(lambda: main.soon(done.set)) < 4
    assert done.wait(10)


def test_call_without_time_is_unavailable_and_no_wrong_value() -> None:
    main = MainThread("store")
    with pytest.raises(leasehold.StoreUnavailable, match="timed out before the call was sent"):
        main.run(answers, steps("x"), -0.5)
    main.end()
