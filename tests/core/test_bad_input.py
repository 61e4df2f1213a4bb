"""Wrong arguments: each a clear error, and nothing is changed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import leasehold
from leasehold import aio


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
def test_names(locks: leasehold.Locks, name: str, says: str) -> None:
    for use in (locks.lock, locks.inspect, locks.break_lease):
        with pytest.raises(ValueError, match=says):
            use(name)


@pytest.mark.parametrize("name", [None, 5, b"x", ["x"]])
def test_names_are_text(locks: leasehold.Locks, name: Any) -> None:
    with pytest.raises(TypeError, match="must be a str"):
        locks.lock(name)


@pytest.mark.parametrize(
    "name", ["x" * 512, "é", "e\u0301", "🔒" * 512, "a b ", " ", "\u00a0", "\u200b", "'; --", "a/b"]
)
def test_odd_names_are_kept_whole(locks: leasehold.Locks, name: str) -> None:
    with locks.lock(name):
        assert [info.name for info in locks.leases()] == [name]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"ttl": 0}, ValueError, "ttl"),
        ({"ttl": "30"}, TypeError, "ttl"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"timeout": "1"}, TypeError, "timeout"),
        ({"kind": ""}, ValueError, "kind"),
        ({"kind": "k" * 65}, ValueError, "kind"),
        ({"data": object()}, ValueError, "data must be JSON"),
        ({"data": float("nan")}, ValueError, "data must be JSON"),
        ({"data": "a\ud800"}, ValueError, "data must be JSON"),
        ({"data": "x" * 4095}, ValueError, "4096 bytes as JSON, not 4097"),
        ({"on_lost": "explode"}, ValueError, "on_lost"),
        ({"on_lost": "cancel"}, ValueError, "leasehold.aio"),
        ({"on_unavailable": "?"}, ValueError, "on_unavailable"),
        ({"poll": 1}, ValueError, "poll"),
        ({"poll": (0.5, 0.1)}, ValueError, "poll"),
        ({"backoff": "linear"}, ValueError, "backoff"),
        ({"drift": 20}, ValueError, "drift"),
        ({"max_renew_failures": 1.5}, TypeError, "max_renew_failures"),
    ],
)
def test_options_of_lock(locks: leasehold.Locks, options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        locks.lock("x", **options)


def test_data_up_to_the_limit(locks: leasehold.Locks) -> None:
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
        ("sqlite://leases.db", ValueError, "three slashes"),
        ("sqlite:///", ValueError, "names a file"),
        ("sqlite:///folder/", ValueError, "names a file"),
        ("sqlite:///:memory:", ValueError, "memory://"),
        ("sqlite:///x.db?mode=ro", ValueError, "unknown option 'mode'"),
        ("memory://x?y=1", ValueError, "unknown option 'y'"),
        (5, TypeError, "URL or a client"),
    ],
)
@pytest.mark.parametrize("connect", [leasehold.connect, aio.connect])
def test_urls(connect: Any, url: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        connect(url)


def test_no_secret_of_a_url_is_ever_told() -> None:
    with pytest.raises(ValueError) as caught:
        leasehold.connect("ftp://user:hunter2@host/x?password=hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("options", [{"namespace": "n" * 65}, {"namespace": "a\n"}, {"owner": ""}, {"owner": "\x00"}])
def test_namespace_and_owner(options: Any) -> None:
    with pytest.raises(ValueError):
        leasehold.connect("memory://", **options)


def test_acquire_timeout(locks: leasehold.Locks) -> None:
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="timeout"):
            locks.lock("x").acquire(wrong)
    with pytest.raises(TypeError, match="timeout"):
        locks.lock("x").try_acquire("1")  # type: ignore[arg-type]


def test_current_outside_of_a_block() -> None:
    with pytest.raises(LookupError, match="no lease is held here"):
        leasehold.current()


def test_decorating_the_wrong_kind_of_function(locks: leasehold.Locks) -> None:
    async def task() -> None: ...

    with pytest.raises(TypeError, match=r"leasehold\.aio"):
        locks.lock("x")(task)
    with pytest.raises(TypeError, match=r"leasehold\.connect"):
        aio.connect("memory://").lock("x")(lambda: None)  # type: ignore[type-var]


def test_threads_and_tasks_have_the_same_names_and_signatures() -> None:
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
