"""What ``leasehold doctor`` says about versions of etcd that have known faults."""

from __future__ import annotations

import pytest

from leasehold.stores.etcd.doctor import doctor
from servers.etcd import Etcd, ask

from .http2_proxy import Strict

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

CRASHES, REVOKES, RENEWS = "etcd#14891", "etcd#15247", "etcd#20547"


@pytest.mark.parametrize(
    ("version", "faults"),
    [
        ("3.5.01", {CRASHES, REVOKES, RENEWS}),
        ("3.5.06", {CRASHES, REVOKES, RENEWS}),
        ("3.5.07", {REVOKES, RENEWS}),
        ("3.5.13", {RENEWS}),
        ("3.5.22", {RENEWS}),
        ("3.5.23", set()),
        ("3.4.22", {CRASHES, REVOKES, RENEWS}),
        ("3.4.23", {REVOKES, RENEWS}),
        ("3.4.30", {REVOKES, RENEWS}),
        ("3.4.31", {RENEWS}),
        ("3.4.38", set()),
        ("3.6.04", {RENEWS}),
        ("3.6.05", set()),
    ],
)
def test_doctor_names_the_known_faults_of_this_version(etcd_server: Etcd, version: str, faults: set[str]) -> None:
    assert etcd_server.port
    true = ask(etcd_server.port, "maintenance/status", {})["version"]
    with Strict(etcd_server.port, lies=(true.encode(), version.encode().rjust(len(true), b"0"))) as strict:
        found = [finding.message for finding in doctor(f"etcd://127.0.0.1:{strict.port}")]
    assert {fault for fault in (CRASHES, REVOKES, RENEWS) if any(fault in message for message in found)} == faults, (
        found
    )
