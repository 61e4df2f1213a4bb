"""Listing held leases: leases, inspect, metrics; namespaces are separate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ..handles import eventually
from ..scene import Scene


def test_leases_are_listed_by_name(scene: Scene) -> None:
    """Reference, leases(): LeaseInfo with aware times; expired and free ones are not shown."""
    locks, other = scene.connect(owner="me", ttl=30), scene.connect(owner="you", ttl=30)
    before = datetime.now(UTC)
    leases = [locks.lock(name, kind="batch", data={"name": name}).acquire() for name in ("b", "a", "c")]
    foreign = other.lock("d").acquire()
    other.lock("free").acquire().release()
    silent = other.lock("silent", ttl=0.3, renew=False).acquire()
    assert silent.wait_lost()
    found = {each.name: each for each in locks.leases() if each.name != "silent"}
    assert list(found) == ["a", "b", "c", "d"]
    info = found["b"]
    assert (info.owner, info.kind, info.data, info.token) == ("me", "batch", {"name": "b"}, leases[0].token)
    assert found["d"].owner == "you"
    slack = timedelta(seconds=5)
    assert before - slack <= info.acquired <= datetime.now(UTC) + slack
    assert timedelta(seconds=15) < info.expires - info.acquired < timedelta(seconds=45)
    assert info.acquired.utcoffset() == timedelta(0)
    assert info.waiters in (0, None)
    for lease in (*leases, foreign):
        lease.release()


def test_a_prefix_is_taken_literally(scene: Scene) -> None:
    """Reference, leases(prefix): nothing in it is a pattern."""
    locks = scene.connect(ttl=30)
    names = ["a", "a%b", "a*b", "a_b", "axb", "a[b]", "A", "b", "ä", "a.b", "a?b", "a\\b"]
    leases = [locks.lock(name).acquire() for name in names]
    for prefix in ("", "a", "a%", "a_", "a*", "a[", "a.", "a?", "a\\", "A", "ä", "z"):
        found = [each.name for each in locks.leases(prefix)]
        assert sorted(found) == sorted(name for name in names if name.startswith(prefix)), prefix
        assert len(found) == len(set(found))
    for lease in leases:
        lease.release()


def test_inspect_shows_the_holder(scene: Scene) -> None:
    """Reference, inspect()."""
    locks, other = scene.connect(owner="me", ttl=30), scene.connect(ttl=30)
    name = scene.name()
    assert other.inspect(name) is None
    lease = locks.lock(name, data=["x"]).acquire()
    info = other.inspect(name)
    assert (info.name, info.owner, info.token, info.data, info.kind) == (name, "me", lease.token, ["x"], "lock")
    waiter = other.lock(name).start()
    scene.until_waiting(name)
    assert other.inspect(name).waiters in (1, None)
    lease.release()
    waiter.lease().release()
    assert other.inspect(name) is None


def test_inspect_does_not_show_what_has_expired(scene: Scene) -> None:
    """Reference, inspect(): only live holders, even if an expired record is still there."""
    locks = scene.connect()
    name = scene.name()
    lease = locks.lock(name, ttl=scene.ttl, renew=False).acquire()
    assert locks.inspect(name) is not None or not lease.remaining
    assert lease.wait_lost()
    scene.until_free(name)
    assert locks.inspect(name) is None
    assert [each.name for each in locks.leases()] == []


def test_metrics_count_what_is_held(scene: Scene) -> None:
    """Reference, metrics(); D10: counts by kind and owner, average and longest hold."""
    locks, other = scene.connect(owner="me", ttl=30), scene.connect(owner="you", ttl=30)
    empty = locks.metrics()
    assert (empty.total, dict(empty.by_kind), dict(empty.by_owner)) == (0, {}, {})
    leases = [locks.lock(scene.name(), kind="node", ttl=30, renew=False).acquire() for _ in range(2)]
    leases += [other.lock(scene.name()).acquire() for _ in range(3)]
    found = locks.metrics()
    assert found.total == 5
    assert dict(found.by_kind) == {"node": 2, "lock": 3}
    assert dict(found.by_owner) == {"me": 2, "you": 3}
    assert 0 <= found.average_hold <= found.longest_hold < 30
    leases[0].renew()
    assert locks.metrics().renewals == found.renewals + 1
    for lease in leases:
        lease.release()
    assert locks.metrics().total == 0


def test_metrics_do_not_count_as_expired_what_was_given_back(scene: Scene) -> None:
    """Contract, metrics() and min_hold: a name that only min_hold keeps taken does not count as expired."""
    locks = scene.connect(ttl=30)
    lease = locks.lock(scene.name(), min_hold=0.5).acquire()
    assert lease.release()
    assert locks.metrics().expired == 0
    eventually(lambda: locks.inspect(lease.name) is None, what="min_hold is over")
    assert (locks.metrics().total, locks.metrics().expired) == (0, 0)


def test_namespaces_keep_to_themselves(scene: Scene) -> None:
    """Reference, namespace: kept beside the name, never glued to it; a Locks sees only its own, names bare."""
    spaces = [scene.namespace, scene.namespace + "a", scene.namespace + ":", scene.namespace + ":a"]
    names = ["a:b", ":b", "b", ":a:b", "a"]
    everyone = [scene.connect(namespace=space, ttl=30) for space in spaces]
    leases = [(locks, locks.lock(name).acquire(0)) for locks in everyone for name in names]
    for locks in everyone:
        assert sorted(each.name for each in locks.leases()) == sorted(names)
        assert locks.metrics().total == len(names)
        assert locks.inspect("nothing") is None
    assert everyone[0].break_lease("b", force=True)
    assert [locks.inspect("b") is None for locks in everyone] == [True, False, False, False]
    for _, lease in leases:
        lease.release()
    for space in spaces:
        for name in names:
            assert not [each for each in scene.probe.holders(space, name) if each.expires_in > 0]


def test_the_empty_namespace_is_a_namespace(scene: Scene) -> None:
    """Reference, namespace: empty unless given."""
    name = f"{scene.namespace}-{scene.name()}"
    with_none, own = scene.connect(namespace="", ttl=30), scene.connect(ttl=30)
    lease = with_none.lock(name).acquire(0)
    taken = own.lock(name).acquire(0)
    assert [each.name for each in with_none.leases(scene.namespace)] == [name]
    assert lease.release()
    assert taken.release()


def test_data_comes_back_as_it_was(scene: Scene) -> None:
    """Reference, data; D1: JSON beside the lease."""
    locks = scene.connect(ttl=30)
    nested: list[Any] = [{}, [], {"a": [1, 2.5, None, {"b": "$x"}]}, {"$set": 1, "a.b": 2}]
    for data in (*nested, 0, False, "", "é\u0301 🔒 \"'\\", "x" * 4000):
        name = scene.name()
        lease = locks.lock(name, data=data).acquire()
        found = locks.inspect(name).data
        assert found == data
        assert type(found) is type(data)
        lease.release()
    lease = locks.lock(scene.name()).acquire()
    assert locks.inspect(lease.name).data is None
    lease.release()
    with pytest.raises(ValueError):
        locks.lock(scene.name(), data={"a": "x" * 4096})
