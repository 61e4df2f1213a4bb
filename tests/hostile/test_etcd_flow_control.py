"""HTTP/2 between leasehold and etcd, as a strict party in the middle sees it."""

from __future__ import annotations

import secrets

import pytest

import leasehold
from leasehold import aio
from servers.etcd import Etcd

from .http2_proxy import Strict

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

ENOUGH = 18 * 2**20
"""Bytes after which every client has widened its windows."""


def test_threads_widen_each_window_by_what_it_has_received(etcd_server: Etcd) -> None:
    assert etcd_server.port
    with Strict(etcd_server.port) as strict:
        url = f"etcd://127.0.0.1:{strict.port}"
        with leasehold.connect(url, namespace=secrets.token_hex(6), ttl=60) as locks:
            held = [locks.lock(f"name-{number}", data="x" * 4000).acquire() for number in range(100)]
            while strict.received < ENOUGH:
                assert len(list(locks.leases())) == len(held)
        assert strict.faults == []


async def test_tasks_widen_each_window_by_what_it_has_received(etcd_server: Etcd) -> None:
    assert etcd_server.port
    with Strict(etcd_server.port) as strict:
        url = f"etcd://127.0.0.1:{strict.port}"
        async with aio.connect(url, namespace=secrets.token_hex(6), ttl=60) as locks:
            held = [await locks.lock(f"name-{number}", data="x" * 4000).acquire() for number in range(100)]
            while strict.received < ENOUGH:
                assert len([info async for info in locks.leases()]) == len(held)
        assert strict.faults == []
