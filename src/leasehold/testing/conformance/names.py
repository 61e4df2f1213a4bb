"""Names are any text of 1 to 512 characters, kept whole, and the same on every store."""

from __future__ import annotations

import pytest

from ..scene import Scene

ODD = [
    "x" * 512,
    "é" * 512,
    "🔒" * 512,
    "x" * 511 + "y",
    "x" * 511 + "z",
    "Job",
    "job",
    "JOB",
    "straße",
    "strasse",
    "caf\u00e9",
    "cafe\u0301",
    "ä",
    "a",
    "Å",
    "\u212b",
    "trailing ",
    "trailing",
    " leading",
    "'; DROP TABLE leasehold; --",
    '"quoted" `ticks` \\ back',
    "%_*?[]{}()^$|+",
    "$$NOW",
    "$name",
    "a.b",
    "a/b/../c",
    "/",
    "..",
    "a:b",
    "{a}b",
    "\u00a0",
    "\u200b",
    "null",
    "0",
    "00",
    "1e3",
    "\u202eright to left",
    "\ufeffbom",
    "ﬀ",
    "ff",
    "İ",
    "ı",
    "i",
    "I",
]


def test_odd_names_are_names(scene: Scene) -> None:
    """Reference, names: never cut, folded or only hashed; Job is not job, é is not e + combining accent."""
    locks, other = scene.connect(ttl=30), scene.connect(ttl=30)
    leases = {}
    for name in ODD:
        lease = locks.lock(name).try_acquire()
        assert lease is not None, f"{name!r} is taken for another"
        leases[name] = lease
    assert sorted(each.name for each in other.leases()) == sorted(ODD)
    for name, lease in leases.items():
        assert other.lock(name).try_acquire() is None
        info = other.inspect(name)
        assert (info.name, info.token) == (name, lease.token)
        assert [each.token for each in scene.held(name)] == [lease.token]
    for name in ODD:
        assert [each.name for each in other.leases(name) if each.name == name] == [name]
    for name, lease in leases.items():
        lease.renew()
        assert lease.release(), name
        assert other.inspect(name) is None


def test_odd_owners_namespaces_and_kinds(scene: Scene) -> None:
    """Reference: the same checks for every other text."""
    for text in ("$$NOW", "a.b", "%_*?[]{}", "é\u0301🔒", "'\"\\`", " x ", "{a}:b"):
        locks = scene.connect(namespace=scene.namespace + text, owner=text, ttl=30)
        lease = locks.lock("name", kind=text).acquire()
        info = locks.inspect("name")
        assert (info.owner, info.kind, info.token) == (text, text, lease.token)
        (held,) = scene.probe.holders(scene.namespace + text, "name")
        assert (held.owner, held.token) == (text, lease.token)
        assert lease.release()


def test_impossible_names_are_refused(scene: Scene) -> None:
    """Reference, names: ValueError or TypeError before any call to the store."""
    locks, faults = scene.faulty()
    for name in ("", "x" * 513, "a\0b", "a\nb", "\x7f", "\x85", "\ud800"):
        with pytest.raises(ValueError):
            locks.lock(name)
        with pytest.raises(ValueError):
            locks.inspect(name)
    with pytest.raises(TypeError):
        locks.lock(7)  # type: ignore[arg-type]
    assert not faults.calls
