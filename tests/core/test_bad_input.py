"""Wrong arguments: each a clear error, and nothing is changed."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import leasehold
from intercept import Intercepted
from leasehold import aio, fence
from leasehold.core.options import LOCK_OPTIONS


@pytest.fixture
def locks() -> Iterator[leasehold.Locks]:
    with leasehold.connect("memory://bad-input") as locks:
        yield locks
        assert list(locks.leases()) == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "1 to 512 characters, not 0"),
        ("x" * 513, "1 to 512 characters, not 513"),
        ("a\nb", r"control character \(U\+000A\) at position 1"),
        ("a\x00", r"U\+0000"),
        ("\x7f", r"U\+007F"),
        ("\x85", r"U\+0085"),
        ("a\ud800", r"lone surrogate \(U\+D800\) at position 1"),
    ],
)
def test_bad_name_is_refused(locks: leasehold.Locks, name: str, says: str) -> None:
    for use in (locks.lock, locks.inspect, locks.break_lease):
        with pytest.raises(ValueError, match=says):
            use(name)


@pytest.mark.parametrize("name", [None, 5, b"x", ["x"]])
def test_name_that_is_no_text_is_refused(locks: leasehold.Locks, name: Any) -> None:
    with pytest.raises(TypeError, match="must be a str"):
        locks.lock(name)


@pytest.mark.parametrize(
    "name", ["x" * 512, "é", "e\u0301", "🔒" * 512, "a b ", " ", "\u00a0", "\u200b", "'; --", "a/b"]
)
def test_odd_name_is_kept_whole(locks: leasehold.Locks, name: str) -> None:
    with locks.lock(name):
        assert [info.name for info in locks.leases()] == [name]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"ttl": 0}, ValueError, "ttl"),
        ({"ttl": b"30"}, TypeError, "ttl"),
        ({"ttl": "soon"}, ValueError, "ttl: invalid duration 'soon': use seconds, or a number with ms, s, m, h or d"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"timeout": [1]}, TypeError, "timeout"),
        ({"timeout": "-1"}, ValueError, "timeout: invalid duration '-1'"),
        ({"kind": ""}, ValueError, "kind"),
        ({"kind": "k" * 65}, ValueError, "kind"),
        ({"data": object()}, ValueError, "data cannot be encoded as JSON"),
        ({"data": float("nan")}, ValueError, "data cannot be encoded as JSON"),
        ({"data": "a\ud800"}, ValueError, "data cannot be encoded as JSON"),
        ({"data": "x" * 4095}, ValueError, "data has 4097 bytes as JSON; the limit is 4096"),
        ({"on_lost": "explode"}, ValueError, "on_lost"),
        ({"on_lost": "cancel"}, ValueError, "leasehold.aio"),
        ({"on_unavailable": "?"}, ValueError, "on_unavailable"),
        ({"poll": 1}, ValueError, "poll"),
        ({"poll": (0.5, 0.1)}, ValueError, "poll"),
        ({"backoff": "linear"}, ValueError, "backoff"),
        ({"drift": 20}, ValueError, "drift"),
        ({"max_renew_failures": 1.5}, TypeError, "max_renew_failures"),
        ({"renew": 0}, TypeError, "renew must be True or False, not int"),
        ({"renew": "no"}, TypeError, "renew"),
        ({"fair": 1}, TypeError, "fair must be True or False, not int"),
        ({"fair": "no"}, TypeError, "fair"),
        ({"on_lost": 5}, TypeError, "on_lost"),
    ],
)
def test_bad_option_of_lock_is_refused(locks: leasehold.Locks, options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        locks.lock("x", **options)
    if "on_lost" not in options:
        with pytest.raises(error, match=says):
            aio.connect("memory://bad-input").lock("x", **options)


def test_option_that_is_none_stays_at_its_default() -> None:
    store = Intercepted("memory://bad-input")
    with store.connect() as locks:
        locks.lock("x").acquire().release()
        locks.lock("x", renew=None, fair=None).acquire().release()
    assert {ask._replace(attempt="") for ask in store.asks} == {store.asks[0]._replace(attempt="")}
    with pytest.raises(TypeError, match="renew"):
        leasehold.connect("memory://", renew=1)


@pytest.mark.parametrize("connect", [leasehold.connect, aio.connect])
@pytest.mark.parametrize(
    ("function", "args", "options"),
    [
        ("rlock", ("x",), {}),
        ("semaphore", ("x",), {"limit": 2}),
        ("rwlock", ("x",), {}),
        ("all_of", ("x", "y"), {}),
        ("accept", (None,), {}),
        ("once", ("x",), {}),
        ("election", ("x",), {}),
    ],
)
@pytest.mark.parametrize("bogus", ["bogus", "store", "share", "defaults"])
def test_unknown_option_is_refused(connect: Any, function: str, args: Any, options: Any, bogus: str) -> None:
    made = connect("memory://bad-input")
    if function == "accept":
        with leasehold.connect("memory://bad-input") as holder:
            lease = holder.lock("x").acquire()
            args = (lease.transfer(),)
            lease.release()
    with pytest.raises(TypeError, match=rf"^{function}\(\) has no option '{bogus}'"):
        getattr(made, function)(*args, **options, **{bogus: 1})


@pytest.mark.parametrize("connect", [leasehold.connect, aio.connect])
def test_unknown_option_of_readers_and_writers_is_refused(connect: Any) -> None:
    rwlock = connect("memory://bad-input").rwlock("x")
    for side in (rwlock.read, rwlock.write):
        with pytest.raises(TypeError, match=r"^rwlock\(\) has no option 'bogus'"):
            side(bogus=1)


def test_options_that_other_kinds_pass_on_are_those_of_lock() -> None:
    for world in (leasehold, aio):
        options = {*inspect.signature(world.Locks.lock).parameters} - {"self", "name"}
        assert options - {"if_busy"} == {*LOCK_OPTIONS} == {*world.LockOptions.__annotations__}


@pytest.mark.parametrize("connect", [leasehold.connect, aio.connect])
@pytest.mark.parametrize("kinds", [[("a", {"ttl": 5})], "node", 5])
def test_kinds_that_are_no_mapping_are_refused(connect: Any, kinds: Any) -> None:
    with pytest.raises(TypeError, match="kinds must be a mapping"):
        connect("memory://", kinds=kinds)


@pytest.mark.parametrize("connect", [leasehold.connect, aio.connect])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"wait": 1}, "wait must be True or False, not int"),
        ({"wait": None}, "wait"),
        ({"version": b"1"}, "version must be a str or an int, not bytes"),
        ({"version": 1.5}, "version"),
        ({"version": True}, "version"),
    ],
)
def test_bad_option_of_once_is_refused(connect: Any, options: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        connect("memory://").once("x", **options)


@pytest.mark.parametrize("cancel", [1, "x", threading.Lock()])
def test_cancel_that_is_no_event_is_refused(locks: leasehold.Locks, cancel: Any) -> None:
    kinds = (locks.lock("x"), locks.rlock("x"), locks.semaphore("x", limit=2), locks.all_of("x", "y"))
    for lock in (*kinds, locks.rwlock("x").read()):
        with pytest.raises(TypeError, match=r"cancel must be a threading\.Event"):
            lock.acquire(cancel=cancel)


@pytest.mark.parametrize(("prefix", "error"), [("a\ud800", ValueError), ("a\n", ValueError), ("x" * 513, ValueError)])
async def test_bad_prefix_of_a_listing_is_refused(locks: leasehold.Locks, prefix: str, error: type[Exception]) -> None:
    for each in (prefix, 5, None):
        with pytest.raises((error, TypeError), match="the prefix of names"):
            locks.leases(each)  # type: ignore[arg-type]
        async with aio.connect("memory://bad-input") as tasks:
            with pytest.raises((error, TypeError), match="the prefix of names"):
                tasks.leases(each)  # type: ignore[arg-type]


def test_data_may_be_as_long_as_its_limit(locks: leasehold.Locks) -> None:
    with locks.lock("x", data="x" * 4094):
        info = locks.inspect("x")
        assert info is not None
        assert info.data == "x" * 4094


@pytest.mark.parametrize(
    ("url", "error", "says"),
    [
        ("", ValueError, "scheme"),  # an empty URL is not the default: that would hide a missing setting
        ("leases.db", ValueError, "scheme"),
        ("ftp://x", ValueError, "unknown scheme 'ftp'"),
        ("sqlite://leases.db", ValueError, "write sqlite:///relative.db"),
        ("sqlite:///", ValueError, "name of the file is missing"),
        ("sqlite:///folder/", ValueError, "name of the file is missing"),
        ("sqlite:///:memory:", ValueError, "memory://"),
        ("sqlite:///x.db?mode=ro", ValueError, "unknown option 'mode'"),
        ("memory://x?y=1", ValueError, "unknown option 'y'"),
        (5, TypeError, "URL or a client"),
    ],
)
@pytest.mark.parametrize("connect", [leasehold.connect, aio.connect])
def test_bad_url_is_refused(connect: Any, url: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        connect(url)


def test_error_of_a_url_does_not_show_its_password() -> None:
    with pytest.raises(ValueError) as caught:
        leasehold.connect("ftp://user:hunter2@host/x?password=hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("options", [{"namespace": "n" * 65}, {"namespace": "a\n"}, {"owner": ""}, {"owner": "\x00"}])
def test_bad_namespace_or_owner_is_refused(options: Any) -> None:
    with pytest.raises(ValueError):
        leasehold.connect("memory://", **options)


@pytest.mark.parametrize("connect", [leasehold.connect, aio.connect])
def test_default_owner_is_host_process_and_a_random_part(connect: Any) -> None:
    """Seeds A5, D6: the host and the process, for people, and a random part, so that no two are the same."""
    owners = [connect("memory://").owner for _ in range(50)]
    assert len(set(owners)) == 50
    for owner in owners:
        host, pid, random = owner.rsplit("_", 2)
        assert (host, pid) == (os.uname().nodename[:128], str(os.getpid()))
        assert len(random) == 8
    assert connect("memory://", owner="api-7").owner == "api-7"


def test_bad_timeout_of_acquire_is_refused(locks: leasehold.Locks) -> None:
    for wrong in (-1, float("nan"), float("-inf"), 1e9):
        with pytest.raises(ValueError, match="timeout"):
            locks.lock("x").acquire(wrong)
    with pytest.raises(TypeError, match="timeout"):
        locks.lock("x").try_acquire(b"1")  # type: ignore[arg-type]


def test_infinite_timeout_waits_as_long_as_it_takes() -> None:
    """``float("inf")`` is as long as it takes, also where ``connect`` says otherwise."""
    forever = float("inf")
    with leasehold.connect("memory://forever", timeout=0.05) as locks:
        endless = leasehold.connect("memory://forever", timeout=forever)
        ways = [
            lambda: locks.lock("x").acquire(forever),
            lambda: locks.lock("x", timeout=forever).acquire(),
            lambda: locks.lock("x").try_acquire(forever),
            lambda: locks.all_of("x", "y").acquire(forever),
            lambda: locks.rlock("x").acquire(forever),
            lambda: endless.lock("x").acquire(),
            lambda: locks.once("x").run(lambda: 1, forever),
        ]
        for way in ways:
            held = locks.lock("x").acquire()
            threading.Timer(0.2, held.release).start()
            had = way()
            assert getattr(had, "ok", True)
            if not hasattr(had, "ok"):
                had.release()
        endless.close()


async def test_infinite_timeout_of_a_task_waits_as_long_as_it_takes() -> None:
    forever = float("inf")
    async with aio.connect("memory://forever", timeout=0.05) as locks:
        ways = [
            lambda: locks.lock("x").acquire(forever),
            lambda: locks.lock("x", timeout=forever).acquire(),
            lambda: locks.lock("x").try_acquire(forever),
            lambda: locks.all_of("x", "y").acquire(forever),
            lambda: locks.once("x", version=2).run(lambda: 1, forever),
        ]
        for way in ways:
            held = await locks.lock("x").acquire()
            giving = asyncio.get_running_loop().call_later(0.2, lambda held=held: asyncio.ensure_future(held.release()))
            had: Any = await way()
            assert giving.when() <= asyncio.get_running_loop().time()
            assert getattr(had, "ok", True)
            if not hasattr(had, "ok"):
                await had.release()


def test_current_outside_of_a_block_is_a_lookup_error() -> None:
    with pytest.raises(LookupError, match="no lease is held here"):
        leasehold.current()


def test_decorating_a_function_of_the_other_world_is_refused(locks: leasehold.Locks) -> None:
    async def task() -> None: ...

    with pytest.raises(TypeError, match=r"leasehold\.aio"):
        locks.lock("x")(task)
    with pytest.raises(TypeError, match=r"leasehold\.connect"):
        aio.connect("memory://").lock("x")(lambda: None)  # type: ignore[type-var]


@pytest.mark.parametrize("what", [5, None, "x", object()])
def test_fence_refuses_what_is_no_lease(what: Any) -> None:
    with pytest.raises(TypeError, match=f"a fence takes a lease, not {type(what).__name__}"):
        fence.token(what)


def test_fence_takes_the_lease_of_a_term_and_not_the_term(locks: leasehold.Locks) -> None:
    def lead(term: leasehold.Term) -> int:
        with pytest.raises(TypeError, match=r"not Term: use term\.lease"):
            fence.token(term)  # type: ignore[arg-type]
        return fence.token(term.lease) - term.token

    assert locks.election("e").run(lead) == 0


def test_threads_and_tasks_have_the_same_names_and_signatures() -> None:
    """E10."""
    assert set(leasehold.__all__) == set(aio.__all__)
    for kind in ("Locks", "Lock", "Lease"):
        here, there = getattr(leasehold, kind), getattr(aio, kind)
        names = {name for name in dir(here) if not name.startswith("_")}
        assert names == {name for name in dir(there) if not name.startswith("_")}
        for name in names:
            a, b = inspect.getattr_static(here, name), inspect.getattr_static(there, name)
            if inspect.isfunction(a):
                ours, theirs = inspect.signature(a).parameters, inspect.signature(b).parameters
                # Threads need an event to be cancelled by; tasks have cancel().
                assert [p for p in ours if p != "cancel"] == list(theirs), (kind, name)
                assert [p.default for p in ours.values() if p.name != "cancel"] == [p.default for p in theirs.values()]
            else:
                assert type(a) is type(b), (kind, name)
    assert str(inspect.signature(leasehold.connect)) == str(inspect.signature(aio.connect))
