"""What ZooKeeper's leases say of their end, and what becomes of them where the system or the servers set limits."""

from __future__ import annotations

import secrets
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

import leasehold
from leasehold import admin
from servers.zookeeper import ZooKeeper

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]


def test_listing_tells_when_a_lease_that_is_not_renewed_ends(zookeeper_server: Any) -> None:
    with leasehold.connect(zookeeper_server.url, namespace=secrets.token_hex(6)) as locks:
        lease = locks.lock("x", ttl=20, renew=False).acquire(timeout=30)
        time.sleep(0.5)
        info = locks.inspect("x")
        assert info is not None
        assert 19 < (info.expires - info.acquired).total_seconds() < 20.3
        lease.release()


def test_listing_tells_that_a_renewed_lease_has_its_whole_ttl(zookeeper_server: Any) -> None:
    with leasehold.connect(zookeeper_server.url, namespace=secrets.token_hex(6)) as locks:
        renewed = threading.Event()
        locks.on_event(lambda event: renewed.set() if event.type == "renewed" else None)
        lease = locks.lock("x", ttl=6, renew_every=1.5).acquire(timeout=30)
        assert renewed.wait(10)
        time.sleep(1)
        info = locks.inspect("x")
        assert info is not None
        assert (info.expires - datetime.now(UTC)).total_seconds() > 4.9, "it was renewed since"
        lease.release()


def test_close_works_after_the_system_refused_a_thread(zookeeper_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with leasehold.connect(zookeeper_server.url, namespace=secrets.token_hex(6)) as locks:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(leasehold.StoreUnavailable, match="no thread"):
                locks.inspect("x")
        lease = locks.lock("x").acquire(timeout=30)  # threads are to be had again
        assert lease.release()
    with leasehold.connect(zookeeper_server.url, namespace=secrets.token_hex(6)) as locks:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(leasehold.StoreUnavailable, match="no thread"):
                locks.inspect("x")
        locks.close()


def test_doctor_reports_a_tick_time_that_is_too_long(start_server: Any) -> None:
    server = start_server(ZooKeeper, tickTime=6000)
    findings = admin.doctor(server.url)
    assert [each.level for each in findings if "tickTime of 6 s" in each.message] == ["error"], findings


def test_doctor_accepts_the_default_tick_time(start_server: Any) -> None:
    server = start_server(ZooKeeper, tickTime=2000)
    assert not [each for each in admin.doctor(server.url) if "tickTime" in each.message]
