"""Redis: whatever anybody writes into a record, its name alone suffers, and by nothing but a StoreError."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import leasehold

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

PACK = "redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(cjson.decode(ARGV[2])))"
NUMBERS = ["0", "-1", "1", "9223372036854775807", "9007199254740993", "1e308", "inf", "nan", "", "x", "1.5"]
FIELDS = st.sampled_from(["f", "t", "s", "h", "n", "x", "r"])
TEXTS = st.one_of(st.sampled_from([each.encode() for each in NUMBERS]), st.binary(max_size=40))
JSON = st.recursive(
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=14),
    max_leaves=30,
)
HOLDER = st.lists(st.one_of(st.text(max_size=6), st.sampled_from([0, 1, 2, -1, 2**53, 2**62, 10**15])), max_size=14)


@pytest.fixture
def space(redis_server: Any) -> Iterator[tuple[redis.Redis, str, leasehold.Locks]]:
    name = secrets.token_hex(6)
    with redis.Redis.from_url(redis_server.url) as client:
        with leasehold.connect(redis_server.url, namespace=name) as locks:
            yield client, name, locks
        for key in client.scan_iter(f"leasehold:{{{name}:*"):
            client.delete(key)


def attempt(operation: Any) -> None:
    """It may be refused, or find the name busy or lost; anything else is a fault."""
    try:
        operation()
    except (leasehold.StoreError, leasehold.AcquireTimeout, leasehold.LeaseLost):
        pass
    except ValueError as error:  # in use in another shape
        assert "is in use as a" in str(error), error  # noqa: PT017


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_foreign_content_of_a_record_is_nothing_but_a_store_error(
    space: tuple[redis.Redis, str, leasehold.Locks], data: st.DataObject
) -> None:
    client, namespace, locks = space
    key = f"leasehold:{{{namespace}:bad}}"
    client.delete(key, key + ":queue", key + ":note")
    good = locks.lock("good", ttl=600).acquire()
    lease = locks.lock("bad", ttl=600).acquire(timeout=5)
    match data.draw(st.integers(0, 4)):
        case 0:
            client.hset(key, data.draw(FIELDS), data.draw(TEXTS))
        case 1:
            client.eval(PACK, 1, key, "h", json.dumps(data.draw(st.lists(HOLDER, max_size=3))))
        case 2:
            client.eval(PACK, 1, key, data.draw(FIELDS), json.dumps(data.draw(JSON)))
        case 3:
            client.delete(key)
            client.set(key, data.draw(TEXTS))
        case 4:
            who = data.draw(st.binary(min_size=1, max_size=8))
            client.zadd(key + ":queue", {who: data.draw(st.sampled_from([0, 1, 1e18, float("inf")]))})
            client.hset(key, b"w" + who, data.draw(TEXTS))
    attempt(lease.renew)
    attempt(lambda: locks.inspect("bad"))
    attempt(lambda: locks.lock("bad").try_acquire())
    names = {info.name for info in locks.leases()}
    assert "good" in names, "one bad record must not hide the others"
    good.renew()
    attempt(lease.release)
    assert good.release(), "SAFETY: a lease was lost by the record of another name"
    client.delete(key, key + ":queue")
