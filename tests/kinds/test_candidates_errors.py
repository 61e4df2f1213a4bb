"""A callback of an election that raises an error: its term ends, its candidacy does not."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from typing import Any

import pytest

import leasehold
from leasehold import aio
from leasehold.testing.handles import eventually


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]


def test_error_is_logged_with_its_traceback_and_the_pauses_grow(url: str, caplog: pytest.LogCaptureFixture) -> None:
    began: list[float] = []

    def lead(term: Any) -> str:
        began.append(time.monotonic())
        if len(began) < 3:
            raise KeyError("work")
        return "led"

    with leasehold.connect(url) as locks:
        assert locks.election("leader").run(lead) == "led"
        assert locks.inspect("leader") is None
    assert 1 <= began[1] - began[0] < 2 <= began[2] - began[1]
    assert failures(caplog) == [
        "the callback of election 'leader' failed; this candidate campaigns again in 1 s: KeyError: 'work'",
        "the callback of election 'leader' failed; this candidate campaigns again in 2 s: KeyError: 'work'",
    ]
    assert "raise KeyError" in caplog.text


async def test_error_of_a_task_is_logged_and_the_pauses_grow(url: str, caplog: pytest.LogCaptureFixture) -> None:
    began: list[float] = []

    async def lead(term: Any) -> str:
        began.append(time.monotonic())
        if len(began) < 3:
            raise KeyError("work")
        return "led"

    async with aio.connect(url) as locks:
        assert await locks.election("leader").run(lead) == "led"
        assert await locks.inspect("leader") is None
    assert 1 <= began[1] - began[0] < 2 <= began[2] - began[1]
    assert len(failures(caplog)) == 2


def test_lease_of_a_failed_term_is_free_at_once(url: str) -> None:
    """The candidate backs off; the others do not."""
    other_leads = threading.Event()

    def fails(term: Any) -> None:
        raise KeyError("work")

    with leasehold.connect(url) as locks, leasehold.connect(url) as other:
        first, second = locks.election("leader"), other.election("leader")
        failing = threading.Thread(target=first.run, args=(fails,))
        failing.start()
        eventually(lambda: locks.inspect("leader") is None and first.healthy)
        began = time.monotonic()
        leading = threading.Thread(target=second.run, args=(lambda term: other_leads.set(),))
        leading.start()
        assert other_leads.wait(60)
        assert time.monotonic() - began < 1
        first.stop()
        failing.join(60)
        leading.join(60)


@pytest.mark.parametrize("how", ["stop", "drain", "close"])
def test_end_of_a_candidacy_does_not_wait_for_the_pause(how: str, url: str) -> None:
    failed = threading.Event()
    results: list[object] = []

    def fails(term: Any) -> None:
        failed.set()
        raise KeyError("work")

    with leasehold.connect(url) as locks:
        election = locks.election("leader")
        candidate = threading.Thread(target=lambda: results.append(election.run(fails)))
        candidate.start()
        assert failed.wait(60)
        eventually(lambda: locks.inspect("leader") is None)
        began = time.monotonic()
        {"stop": election.stop, "drain": locks.drain, "close": locks.close}[how]()
        candidate.join(60)
        assert time.monotonic() - began < 0.5
        assert results == [None]
        assert not election.healthy


@pytest.mark.parametrize("how", ["stop", "drain", "close", "cancel"])
async def test_end_of_a_candidacy_of_a_task_does_not_wait_for_the_pause(how: str, url: str) -> None:
    failed = asyncio.Event()

    async def fails(term: Any) -> None:
        failed.set()
        raise KeyError("work")

    async with aio.connect(url) as locks:
        election = locks.election("leader")
        candidate = asyncio.create_task(election.run(fails))
        await failed.wait()
        while await locks.inspect("leader") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        began = time.monotonic()
        if how in ("drain", "close"):
            await getattr(locks, how)()
        elif how == "stop":
            election.stop()
        else:
            candidate.cancel()
        await asyncio.wait({candidate}, timeout=10)
        assert time.monotonic() - began < 0.5
        assert candidate.cancelled() if how == "cancel" else candidate.result() is None
        assert not election.healthy


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupt_and_exit_end_the_candidacy(error: type[BaseException], url: str) -> None:
    def lead(term: Any) -> None:
        raise error

    with leasehold.connect(url) as locks:
        election = locks.election("leader")
        with pytest.raises(error):
            election.run(lead)
        assert not election.healthy
        assert locks.inspect("leader") is None


async def test_cancellation_that_the_callback_turns_into_an_error_ends_the_candidacy(url: str) -> None:
    """A cancellation from outside wins, whatever the callback makes of it."""
    leads = asyncio.Event()

    async def lead(term: Any) -> None:
        leads.set()
        try:
            await asyncio.sleep(60)
        finally:
            raise KeyError("cleaning up")

    async with aio.connect(url) as locks:
        candidate = asyncio.create_task(locks.election("leader").run(lead))
        await leads.wait()
        candidate.cancel()
        with pytest.raises(KeyError, match="cleaning up"):
            await candidate


async def test_callback_whose_awaited_task_was_cancelled_has_failed(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody has cancelled the candidate: it must not die of it."""
    terms: list[Any] = []

    async def lead(term: Any) -> str:
        terms.append(term)
        if len(terms) == 1:
            part = asyncio.create_task(asyncio.sleep(60))
            part.cancel()
            await part
        return "led"

    async with aio.connect(url) as locks:
        assert await locks.election("leader").run(lead) == "led"
        assert "CancelledError" in failures(caplog)[0]
        terms.clear()
        with pytest.raises(asyncio.CancelledError):
            await locks.election("leader", on_error="raise").run(lead)


async def test_callback_that_fails_before_its_first_await_has_failed(url: str) -> None:
    calls = itertools.count()

    async def led() -> str:
        return "led"

    def lead(term: Any) -> Any:
        if next(calls) == 0:
            raise KeyError("work")
        return led()

    async with aio.connect(url) as locks:
        assert await locks.election("leader").run(lead) == "led"


def test_async_callback_of_threads_is_refused(url: str) -> None:
    """It would fail in every term."""
    with leasehold.connect(url) as locks, pytest.raises(TypeError, match="coroutine"):
        locks.election("leader").run(lambda term: asyncio.sleep(0))


async def test_callback_of_a_task_that_is_not_async_is_refused(url: str) -> None:
    wrong: Any = lambda term: None  # noqa: E731
    async with aio.connect(url) as locks:
        with pytest.raises(TypeError, match="async"):
            await locks.election("leader").run(wrong)


def test_error_after_the_term_was_over_does_not_end_the_candidacy(url: str, caplog: pytest.LogCaptureFixture) -> None:
    terms: list[Any] = []

    def lead(term: Any) -> str:
        terms.append(term)
        if len(terms) == 1:
            election.resign()
            raise KeyError("cleaning up")
        return "led"

    with leasehold.connect(url) as locks:
        election = locks.election("leader")
        assert election.run(lead) == "led"
        assert len(failures(caplog)) == 1
        terms.clear()
        election = locks.election("leader", on_error="raise")
        with pytest.raises(KeyError):
            election.run(lead)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_error_in_a_child_that_the_callback_has_forked_comes_out(url: str) -> None:
    """The candidacy is the parent's."""
    parent = os.getpid()
    children: list[int] = []

    def lead(term: Any) -> str:
        children.append(os.fork())
        if os.getpid() != parent:
            raise KeyError("child")
        return "led"

    outcome = 9
    with leasehold.connect(url) as locks:
        try:
            result = locks.election("leader").run(lead)
        except KeyError:
            outcome = 7
        finally:
            if os.getpid() != parent:
                os._exit(outcome)
        assert result == "led"
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7


def test_wrong_on_error_is_refused(url: str) -> None:
    with leasehold.connect(url) as locks, pytest.raises(ValueError, match='"log" or "raise"'):
        locks.election("leader", on_error="rais")
