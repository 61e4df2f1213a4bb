"""A loss is loud in threads: LeaseLost comes out of a block whose lease was lost in it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from loud import ALL_KINDS, KINDS, broken, lose, lost_lines

import leasehold
from leasehold.testing.faults import install
from leasehold.testing.handles import eventually


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


@pytest.fixture
def locks(url: str) -> Iterator[leasehold.Locks]:
    with leasehold.connect(url) as locks:
        yield locks


@ALL_KINDS
@pytest.mark.parametrize("on_lost", [None, "raise", lambda lease: None])
def test_block_ends_with_lease_lost_by_default(locks: leasehold.Locks, url: str, kind: str, on_lost: Any) -> None:
    reached = []
    with pytest.raises(leasehold.LeaseLost, match="broken by an operator"):  # noqa: PT012
        with KINDS[kind](locks, on_lost=on_lost) as lease:
            lose(url, lease)
            reached.append("the end")  # a thread cannot be stopped
    assert reached
    with KINDS[kind](locks, on_lost=on_lost) as lease:
        lease.check()


@ALL_KINDS
def test_block_of_an_acquired_lease_and_decorated_call_end_with_lease_lost(
    locks: leasehold.Locks, url: str, kind: str
) -> None:
    with pytest.raises(leasehold.LeaseLost), KINDS[kind](locks).acquire(timeout=30) as lease:
        lose(url, lease)

    @KINDS[kind](locks)
    def work() -> str:
        held = leasehold.current()
        assert isinstance(held, leasehold.Lease)
        lose(url, held)
        return "done"

    with pytest.raises(leasehold.LeaseLost):
        work()


@ALL_KINDS
def test_block_that_only_logs_ends_quietly(
    locks: leasehold.Locks, url: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with KINDS[kind](locks, on_lost="log") as lease:
        lose(url, lease)
    assert lease.lost_reason
    assert any("lost" in line for line in lost_lines(caplog))


def test_callable_is_called_and_the_block_ends_with_lease_lost(locks: leasehold.Locks, url: str) -> None:
    called: list[leasehold.Lease] = []
    with pytest.raises(leasehold.LeaseLost), locks.lock("a", on_lost=called.append) as lease:
        lose(url, lease)
    eventually(lambda: called == [lease])


def test_error_of_the_body_comes_out_with_the_loss_as_its_context(locks: leasehold.Locks, url: str) -> None:
    error = KeyError("of the body")
    with pytest.raises(KeyError) as caught, locks.lock("a") as lease:  # noqa: PT012
        lose(url, lease)
        raise error
    assert caught.value is error
    assert isinstance(error.__context__, leasehold.LeaseLost)
    assert error.__context__.name == "a"


@pytest.mark.parametrize("circular", [False, True])
def test_loss_comes_before_what_the_error_of_the_body_came_from(
    locks: leasehold.Locks, url: str, circular: bool
) -> None:
    cause = ValueError("first")
    if circular:
        cause.__cause__ = cause
    with pytest.raises(KeyError) as caught, locks.lock("a") as lease:  # noqa: PT012
        lose(url, lease)
        raise KeyError("then") from cause
    assert caught.value.__cause__ is cause
    assert isinstance(cause.__context__, leasehold.LeaseLost)


def test_error_of_a_check_in_the_body_is_not_told_twice(locks: leasehold.Locks, url: str) -> None:
    with pytest.raises(leasehold.LeaseLost) as caught, locks.lock("a") as lease:  # noqa: PT012
        lose(url, lease)
        lease.check()
    assert caught.value.__context__ is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupt_wins_over_a_loss(locks: leasehold.Locks, url: str, error: type[BaseException]) -> None:
    with pytest.raises(error) as caught, locks.lock("a") as lease:  # noqa: PT012
        lose(url, lease)
        raise error
    assert "lease 'a' is lost" in shown(caught.value)


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_loss_of_each_nested_block_is_shown_once(locks: leasehold.Locks, url: str) -> None:
    with pytest.raises(leasehold.LeaseLost, match="'b'") as caught, locks.lock("a") as outer, locks.lock("b") as inner:  # noqa: PT012
        lose(url, outer)
        lose(url, inner, "b")
    text = shown(caught.value)
    assert text.count("lease 'a' is lost") == text.count("lease 'b' is lost") == 1
    with pytest.raises(KeyError) as caught_key, locks.lock("a") as outer, locks.lock("b") as inner:  # noqa: PT012
        lose(url, outer)
        lose(url, inner, "b")
        try:
            outer.check()
        except leasehold.LeaseLost as error:
            raise KeyError from error
    text = shown(caught_key.value)
    assert text.count("lease 'a' is lost") == text.count("lease 'b' is lost") == 1


def test_loss_is_shown_where_the_body_has_hidden_what_its_error_came_from(locks: leasehold.Locks, url: str) -> None:
    with pytest.raises(KeyError) as caught, locks.lock("a") as lease:  # noqa: PT012
        lose(url, lease)
        try:
            raise ValueError
        except ValueError:
            raise KeyError from None
    assert "lease 'a' is lost" in shown(caught.value)
    assert "ValueError" not in shown(caught.value)


def test_error_that_is_raised_again_and_again_gathers_few_losses(locks: leasehold.Locks, url: str) -> None:
    again = KeyError()
    for number in range(120):
        with pytest.raises(KeyError), locks.lock(f"a{number}") as lease:  # noqa: PT012
            lose(url, lease, f"a{number}")
            raise again
    length, first = 1, again.__context__
    while first is not None:
        length, first = length + 1, first.__context__
    assert 2 <= length <= 100


def test_error_of_the_body_without_a_loss_is_left_alone(locks: leasehold.Locks) -> None:
    with pytest.raises(KeyError) as caught, locks.lock("a"):
        raise KeyError
    assert caught.value.__context__ is None


@pytest.mark.parametrize("what", ["release", "transfer", "taken over"])
def test_lease_that_its_holder_gave_up_is_not_lost(locks: leasehold.Locks, url: str, what: str) -> None:
    with leasehold.connect(url) as other, locks.lock("a") as lease:
        if what == "release":
            assert lease.release()
        else:
            text = lease.transfer()
        if what == "taken over":
            heir = other.accept(text)
            eventually(lambda: "another process has taken it over" in str(lease.lost_reason))
            heir.release()
    assert not lease.valid


def test_release_in_the_block_after_a_loss_does_not_hide_it(locks: leasehold.Locks, url: str) -> None:
    with pytest.raises(leasehold.LeaseLost), locks.lock("a") as lease:  # noqa: PT012
        lose(url, lease)
        assert not lease.release()


def test_of_nested_blocks_only_those_with_a_lost_lease_end_with_an_error(locks: leasehold.Locks, url: str) -> None:
    with locks.lock("outer") as outer:
        with pytest.raises(leasehold.LeaseLost, match="'a'"):  # noqa: PT012
            with locks.lock("a") as lease, locks.lock("inner") as inner:
                lose(url, lease)
                inner.check()
        outer.check()
    with pytest.raises(leasehold.LeaseLost, match="'b'"), locks.lock("a") as lease, locks.lock("b") as other:  # noqa: PT012
        lose(url, lease)
        lose(url, other, "b")


def test_every_entry_of_a_lost_rlock_is_told(locks: leasehold.Locks, url: str) -> None:
    lock = locks.rlock("a")
    with pytest.raises(leasehold.LeaseLost), lock as outer:  # noqa: PT012
        with pytest.raises(leasehold.LeaseLost), lock:
            lose(url, outer)
        assert not outer.valid
    with lock, lock as lease:
        lease.check()


def test_lost_lease_begins_no_block(locks: leasehold.Locks, url: str) -> None:
    lease = locks.lock("a").acquire()
    lose(url, lease)
    with pytest.raises(leasehold.LeaseLost), lease:
        pytest.fail("the body ran")
    with pytest.raises(LookupError):
        leasehold.current()
    with locks.lock("a", timeout=30):  # it was released
        pass


@ALL_KINDS
@pytest.mark.parametrize("on_lost", [None, "log"])
@pytest.mark.parametrize("how", ["released", "block has ended", "lost", "expired", "offered"])
def test_lease_that_is_no_longer_held_begins_no_block(
    locks: leasehold.Locks, url: str, kind: str, on_lost: Any, how: str
) -> None:
    if how == "offered" and kind in ("all_of", "rlock"):
        return  # they are never offered
    ttl = {"ttl": 0.2, "renew": False} if how == "expired" else {}
    lease = KINDS[kind](locks, on_lost=on_lost, **ttl).acquire()
    if how == "released":
        lease.release()
    elif how == "block has ended":
        with lease:
            pass
    elif how == "offered":
        lease.transfer()
    elif how == "lost":
        lose(url, lease)
    else:
        assert lease.lost.wait(30)
    reason = "it was released" if how in ("released", "block has ended") else str(lease.lost_reason)
    with pytest.raises(leasehold.LeaseLost, match=re.escape(reason)) as caught, lease:
        pytest.fail("the body ran")
    assert caught.value.__context__ is None
    with pytest.raises(LookupError):
        leasehold.current()


@ALL_KINDS
@pytest.mark.parametrize("on_lost", [None, "log"])
def test_block_of_a_lost_lease_does_not_wait_for_a_store_that_hangs(
    url: str, locks: leasehold.Locks, kind: str, on_lost: Any
) -> None:
    faults = install(locks)
    with contextlib.suppress(leasehold.LeaseLost), KINDS[kind](locks, on_lost=on_lost, ttl=2) as lease:
        faults.lose_request("*", noticed_after=30)
        assert lease.lost.wait(30)
        began = time.monotonic()
    took = time.monotonic() - began
    faults.mend()
    assert took < 0.5
    with leasehold.connect(url) as other:  # the keeper has released it
        eventually(lambda: not list(other.leases()))


def test_close_in_the_block_is_a_loss(url: str) -> None:
    locks = leasehold.connect(url)
    with pytest.raises(leasehold.LeaseLost, match="closed"), locks.lock("a"):
        locks.close()


def test_drain_in_the_block_warns_that_it_waits_for_the_block(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with leasehold.connect(url) as locks:
        bare = locks.lock("bare").acquire()
        with pytest.raises(leasehold.LeaseLost, match="drain"), locks.all_of("a", "b"):
            assert locks.drain(0.1) == ["a", "b", "bare"]
        assert not bare.valid
    [line] = [each for each in caplog.records if getattr(each, "lease_event", "") == "drain_in_own_block"]
    assert "own block of 'a', 'b'" in line.getMessage()
    assert line.levelname == "WARNING"


def test_bare_lease_raises_nothing_by_itself_and_its_loss_is_logged_once(
    locks: leasehold.Locks, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    lease = locks.lock("a").acquire()
    with leasehold.connect(url) as operator:
        assert operator.break_lease("a", force=True)
    assert lease.lost.wait(30)
    assert not lease.release()
    assert len(lost_lines(caplog)) == 1
    assert [each.levelname for each in caplog.records if each.levelno >= logging.WARNING] == ["WARNING"]


def test_generator_that_is_closed_early_ends_with_lease_lost(locks: leasehold.Locks, url: str) -> None:
    def rows() -> Iterator[leasehold.Lease]:
        with locks.lock("a") as lease:
            yield lease
            pytest.fail("it was closed")

    with pytest.raises(leasehold.LeaseLost), contextlib.closing(rows()) as found:
        lose(url, next(found))


def test_context_manager_that_yields_in_a_block_ends_with_lease_lost(locks: leasehold.Locks, url: str) -> None:
    @contextlib.contextmanager
    def held() -> Iterator[leasehold.Lease]:
        with locks.lock("a") as lease:
            yield lease

    with pytest.raises(leasehold.LeaseLost), held() as lease:
        lose(url, lease)
    with pytest.raises(KeyError) as caught, held() as lease:  # noqa: PT012
        lose(url, lease)
        raise KeyError
    assert isinstance(caught.value.__context__, leasehold.LeaseLost)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_forked_child_that_leaves_the_block_has_no_lease(locks: leasehold.Locks) -> None:
    """The parent keeps the lease, so its block ends without an error."""
    try:
        with locks.lock("a") as lease:
            child = os.fork()
            if child:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                lease.check()
    except leasehold.LeaseLost as error:
        os._exit(7 if "fork" in error.reason else 8)
    except BaseException:
        if not child:
            os._exit(9)
        raise
    if not child:
        os._exit(6)


def test_work_of_once_and_of_a_leader_is_not_a_block_of_the_caller(locks: leasehold.Locks, url: str) -> None:
    """They deal with the loss of their lease themselves: work that nobody else does ends in one error, and runs again
    when it is called again; a candidate waits again."""
    runs: list[int] = []

    def work() -> str:
        lease = leasehold.current()
        assert isinstance(lease, leasehold.Lease)
        runs.append(lease.token)
        if len(runs) == 1:
            lose(url, lease)
        return "done"

    with pytest.raises(leasehold.LeaseLost) as lost:
        locks.once("a").run(work, timeout=30)
    assert lost.value.__context__ is None
    assert locks.once("a").run(work, timeout=30).result == "done"
    assert len(runs) == 2
    terms: list[int] = []

    def lead(term: leasehold.Term) -> str | None:
        terms.append(term.token)
        if len(terms) == 1:
            broken(url, "leader")
            assert term.stopping.wait(30)
        return "led"

    assert locks.election("leader").run(lead) == "led"
    assert len(terms) == 2


def test_membership_that_fails_ends_its_block_quietly(locks: leasehold.Locks, url: str) -> None:
    with locks.group("g").join() as membership:
        lose(url, membership, "g")


def test_cancel_is_refused_in_threads_and_nonsense_everywhere(locks: leasehold.Locks) -> None:
    with pytest.raises(ValueError, match="needs leasehold"):
        locks.lock("a", on_lost="cancel")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match='"log"'):
        locks.lock("a", on_lost="shout")  # type: ignore[call-overload]
