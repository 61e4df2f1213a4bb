"""What stands in etcd may be anybody's. Whatever it is, only the name that it is about can fail, with a StoreError."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import leasehold
from leasehold.core.acquire import WrongShape
from servers.etcd import Etcd, ask

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

ATTEMPT, SESSION = "0123456789abcdef" * 2, "0123456789abcdef"
GOOD = [1, 0, "owner", "lock", None, "lock", 1, 1, 0, 1_700_000_000_000_000, SESSION]
FUZZ = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

odd_numbers = st.sampled_from([-(2**63), -1, 0, 2, 2**31, 2**53, 2**63 - 1, 2**64, 10**400, 1e300, 0.5, True])
odd_text = st.sampled_from(["", "x" * 5000, "\x1b]0;owned\x07", "a\0b", "\ud800", "../../etc", "~", "\n"])
odd = odd_numbers | odd_text | st.none() | st.lists(st.none(), max_size=2) | st.dictionaries(st.text(), st.none())


@st.composite
def nearly_right(draw: st.DrawFn) -> bytes:
    """A record in which some fields are not what they should be."""
    fields: list[Any] = list(GOOD)
    for place in draw(st.sets(st.integers(0, len(fields) - 1), min_size=1, max_size=3)):
        fields[place] = draw(odd)
    return json.dumps(fields[: draw(st.sampled_from([11, 11, 11, 10, 3]))]).encode()


values = (
    nearly_right()
    | st.binary(max_size=40)
    | st.sampled_from(
        [
            b"",
            b"[" * 100_000,
            b'{"a":1}',
            b"[1]",
            b"\xff\xfe",
            b"[2,{}]",
            b"[" + b"9" * 5000 + b"]",
            json.dumps(GOOD).encode("utf-16"),
            json.dumps(GOOD).encode(),
            b"NaN",
            b"2 newer",
            b"1 \xff",
        ]
    )
)
tails = st.sampled_from(
    [
        ATTEMPT.encode(),
        b"~" + ATTEMPT.encode(),
        b"0" * 16 + ATTEMPT.encode(),
        b"",
        b"\xff",
        b"\0",
        b"x\0y",
        b"\n",
        b"!" * 99,
    ]
) | st.binary(max_size=20)


class Store(NamedTuple):
    server: Etcd
    namespace: str
    locks: leasehold.Locks

    def put(self, key: bytes, value: bytes) -> None:
        assert self.server.port
        body = {"key": _b64(f"leasehold/{self.namespace}/".encode() + key), "value": _b64(value)}
        ask(self.server.port, "kv/put", body)

    def keys(self, start: bytes) -> list[bytes]:
        assert self.server.port
        start = f"leasehold/{self.namespace}/".encode() + start
        found = ask(self.server.port, "kv/range", {"key": _b64(start), "range_end": _b64(_after(start))})
        return [base64.b64decode(each["key"]) for each in found.get("kvs", [])]

    def clear(self, start: bytes) -> None:
        assert self.server.port
        start = f"leasehold/{self.namespace}/".encode() + start
        ask(self.server.port, "kv/deleterange", {"key": _b64(start), "range_end": _b64(_after(start))})


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _after(start: bytes) -> bytes:
    return start[:-1] + bytes((start[-1] + 1,))


@pytest.fixture
def store(etcd_server: Etcd) -> Iterator[Store]:
    namespace = secrets.token_hex(6)
    with leasehold.connect(etcd_server.url, namespace=namespace, ttl=60) as locks:
        yield Store(etcd_server, namespace, locks)


@FUZZ
@given(kind=st.sampled_from([b"h/", b"w/"]), tail=tails, value=values)
@example(kind=b"h/", tail=b"", value=b"")
@example(kind=b"h/", tail=ATTEMPT.encode(), value=json.dumps([*GOOD[:9], -(2**62), SESSION]).encode())
@example(kind=b"h/", tail=ATTEMPT.encode(), value=json.dumps([*GOOD[:7], -1, *GOOD[8:]]).encode())
@example(kind=b"h/", tail=ATTEMPT.encode(), value=json.dumps([*GOOD[:4], "no JSON", *GOOD[5:]]).encode())
def test_foreign_record_fails_nothing_but_its_own_name(store: Store, kind: bytes, tail: bytes, value: bytes) -> None:
    locks = store.locks
    with locks.lock("steady").acquire(timeout=30) as steady:
        store.put(kind + b"fuzzed\0" + tail, value)
        try:
            for operation in (
                lambda: locks.lock("fuzzed").try_acquire(),
                lambda: locks.lock("fuzzed").acquire(timeout=0.01),
                lambda: locks.semaphore("fuzzed", limit=3).try_acquire(),
                lambda: locks.all_of("another", "fuzzed").try_acquire(),
                lambda: locks.inspect("fuzzed"),
                lambda: locks.break_lease("fuzzed"),
                lambda: locks.break_lease("fuzzed", force=True),
            ):
                # A record that is in order may hold the name, as another kind of lock.
                with contextlib.suppress(leasehold.StoreError, leasehold.AcquireTimeout, WrongShape):
                    operation()
            assert "steady" in [info.name for info in locks.leases()]
            locks.metrics()
            steady.renew()
            locks.lock("other").acquire(timeout=30).release()
        finally:
            store.clear(kind + b"fuzzed\0")


@FUZZ
@given(value=values)
def test_foreign_note_is_a_store_error(store: Store, value: bytes) -> None:
    store.put(b"n/fuzzed", value)
    with contextlib.suppress(leasehold.StoreError):
        store.locks.once("fuzzed").outcome()


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"9223372036854775807", b"1_0", b" 7 ", b"9" * 5000, b"\xff"])
def test_foreign_epoch_is_a_store_error_that_names_its_key(store: Store, value: bytes) -> None:
    store.put(b"epoch", value)
    with pytest.raises(leasehold.StoreNotReady, match="epoch"):
        store.locks.lock("name").try_acquire()


def test_listing_goes_past_keys_that_are_no_records(store: Store) -> None:
    for number in range(3):
        for tail in (b"", b"\xff\xff", b"\0", b"\0\xff", b"/h/\0" + ATTEMPT.encode()):
            store.put(b"h/name-%d" % number + tail, b"junk")
    store.put(b"h/\xff\xff\0" + ATTEMPT.encode(), json.dumps(GOOD).encode())
    held = store.locks.lock("name-1x").acquire()
    assert [info.name for info in store.locks.leases()] == [held.name]


def test_damaged_records_do_not_stop_the_renewal_of_other_leases(etcd_server: Etcd) -> None:
    namespace = secrets.token_hex(6)
    with leasehold.connect(etcd_server.url, namespace=namespace, ttl=2) as locks:
        store = Store(etcd_server, namespace, locks)
        steady = [locks.lock(f"steady-{number}").acquire() for number in range(3)]
        damaged = []
        for value in (b"", b"\xff", b"[2,0]", json.dumps([*GOOD[:6], 2**63 - 1, *GOOD[7:]]).encode()):
            damaged.append(locks.lock(f"damaged-{len(damaged)}").acquire())
            [key] = store.keys(b"h/%s\0" % damaged[-1].name.encode())
            store.put(key.partition(f"leasehold/{namespace}/".encode())[2], value)
        ends = time.monotonic() + 30
        while any(lease.valid for lease in damaged) and time.monotonic() < ends:
            time.sleep(0.05)
        assert not any(lease.valid for lease in damaged)
        time.sleep(0.5)
        lost = [lease.lost_reason for lease in steady]
        assert lost == [None] * 3, f"SAFETY: damaged records cost other leases: {lost}"
        locks.lock("new").acquire(timeout=10).release()


def test_damaged_record_is_removed_by_force(store: Store) -> None:
    store.put(b"h/fuzzed\0" + ATTEMPT.encode(), b"junk")
    with pytest.raises(leasehold.StoreNotReady, match="fuzzed"):
        store.locks.lock("fuzzed").try_acquire()
    assert store.locks.break_lease("fuzzed", force=True)
    store.locks.lock("fuzzed").acquire(timeout=10).release()
