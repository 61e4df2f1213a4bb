"""Nodes that anybody could write into ZooKeeper: a StoreError about that name alone, and the rest goes on."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

import leasehold
from leasehold.testing.inside import core

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]

RECORD: dict[str, Any] = {
    **{"format": 1, "state": "held", "owner": "other", "kind": "lock", "data": None, "ttl": 30_000_000},
    **{"since": 1, "token": 7, "rest": 0, "kept": True},
}
odd = st.sampled_from(
    [None, True, "", "x", "{", -1, 0, 1, 2, 2**63 - 1, 2**63, 10**400, -(10**400), 0.5, float("nan"), [], {}, [1]]
)
MISSING = object()
nodes = st.dictionaries(st.sampled_from([*RECORD, "more"]), odd | st.just(MISSING), max_size=3).map(
    lambda changed: json.dumps({k: v for k, v in {**RECORD, **changed}.items() if v is not MISSING}).encode()
)
contents = nodes | st.binary(max_size=20) | st.sampled_from([b"", b"[" * 5000, b"1", b"\xff\xfe", b"9" * 5000])
NUMBERS = ("0", "1", "-1", "٣", "9" * 12, "9" * 5000, "1")
children = st.tuples(
    *(st.sampled_from(["x" * 32, "%", "%FF", "%00", "rest"]), st.sampled_from(["lock", "%", "rwlock", "1"])),
    *(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.sampled_from(["0000000000", "-000000001", "x", *NUMBERS])),
).map(".".join) | st.sampled_from(["odd", "rest.1.1.lock.1.x", "rest." + "9" * 14 + ".1.lock.1.x", "rest.1.1", "."])


class Scene:
    def __init__(self, server: Any) -> None:
        self.space = secrets.token_hex(6)
        self.client: Any = KazooClient(hosts=server.url.partition("://")[2])
        self.client.start(30)
        self.locks = leasehold.connect(server.url, namespace=self.space, ttl=20)
        self.good = self.locks.lock("good").acquire(timeout=30)
        self.epoch = f"/leasehold/{self.space}/{self.client.get_children(f'/leasehold/{self.space}')[0]}"
        self.locks.lock("bad").acquire(timeout=30).release()
        self.bad = self.path("bad")

    def path(self, name: str) -> str:
        for bucket in self.client.get_children(self.epoch):
            if name in self.client.get_children(f"{self.epoch}/{bucket}"):
                return f"{self.epoch}/{bucket}/{name}"
        raise LookupError(name)

    def close(self) -> None:
        self.locks.close()
        self.client.delete(f"/leasehold/{self.space}", recursive=True)
        self.client.stop()
        self.client.close()


@pytest.fixture(scope="module")
def scene(zookeeper_server: Any) -> Iterator[Scene]:
    scene = Scene(zookeeper_server)
    yield scene
    scene.close()


@contextlib.contextmanager
def node(scene: Scene, path: str, content: bytes) -> Iterator[None]:
    """There for the time being. What ZooKeeper itself refuses, nobody could write."""
    made = False
    with contextlib.suppress(KazooException, ValueError):
        scene.client.create(path, content, makepath=True)
        made = True
    try:
        yield
    finally:
        if made:
            with contextlib.suppress(KazooException):
                scene.client.delete(path)


def tried(*operations: Any) -> None:
    """Each works, or raises a StoreError. A ValueError: the name is in use in another way. LeaseLost of the
    damaged lease: its keeper has found out first."""
    for operation in operations:
        try:
            operation()
        except (leasehold.StoreError, leasehold.AcquireTimeout):
            pass
        except leasehold.LeaseLost as error:
            if error.name != "ours":
                raise
        except ValueError as error:
            if "is in use as" not in str(error):
                raise


def take(scene: Scene) -> None:
    lease = scene.locks.lock("bad").try_acquire()
    if lease is not None:
        assert lease.release()


@settings(max_examples=120, deadline=None)
@given(child=children, content=contents)
def test_any_node_makes_nothing_but_a_store_error_about_its_name(scene: Scene, child: str, content: bytes) -> None:
    locks = scene.locks
    with node(scene, f"{scene.bad}/{child}", content):
        tried(lambda: take(scene), lambda: locks.inspect("bad"), lambda: locks.break_lease("bad"))
        assert "good" in [info.name for info in locks.leases()]
        tried(lambda: locks.break_lease("bad", force=True))
    scene.good.renew()


@settings(max_examples=40, deadline=None)
@given(content=contents)
def test_a_holders_node_that_is_damaged_costs_no_other_lease(scene: Scene, content: bytes) -> None:
    lease = scene.locks.lock("ours").acquire(timeout=30)
    path = scene.path("ours")
    [child] = scene.client.get_children(path)
    scene.client.set(f"{path}/{child}", content)
    tried(lease.renew, lambda: scene.locks.inspect("ours"))
    assert "good" in [info.name for info in scene.locks.leases()]
    scene.good.renew()
    tried(lease.release)
    assert scene.good.valid


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(["%", "%41", "%FF", "%00", "%1B[31m", "a.b", "x" * 900, "%0A", "z"]), content=contents)
def test_odd_names_do_not_end_a_listing(scene: Scene, name: str, content: bytes) -> None:
    attempt = f"{'x' * 32}.lock.1.1.0000000000"
    with node(scene, f"{scene.epoch}/00/{name}/{attempt}", content):
        names = [info.name for info in scene.locks.leases()]
    assert "good" in names
    assert all(each.isprintable() for each in names)


@settings(max_examples=20, deadline=None)
@given(content=st.binary(max_size=20))
def test_a_note_of_any_bytes_makes_nothing_but_a_store_error(scene: Scene, content: bytes) -> None:
    bucket = scene.bad.split("/")[-2]
    with node(scene, f"{scene.epoch}/n{bucket}/bad", content):
        tried(lambda: core(scene.locks).driver.run(core(scene.locks).store.read_note("bad"), 5.0))


def test_a_newer_format_is_refused_for_its_name_alone(scene: Scene) -> None:
    with node(scene, f"{scene.bad}/{'x' * 32}.lock.1.1.0000000000", json.dumps({**RECORD, "format": 2}).encode()):
        with pytest.raises(leasehold.StoreNotReady, match=r"'bad'.*newer.*upgrade"):
            scene.locks.lock("bad").try_acquire()
        assert "good" in [info.name for info in scene.locks.leases()]
