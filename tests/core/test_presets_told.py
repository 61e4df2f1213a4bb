"""A kind that sets the timing says so, once."""

from __future__ import annotations

import logging

import pytest

import leasehold


def test_first_lock_of_a_kind_with_a_preset_logs_its_timing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leasehold")
    with leasehold.connect("memory://", kinds={"batch": {"ttl": 60}}) as locks:
        for kind in ("workflow", "workflow", "batch", "lock", "any label"):
            locks.lock("a", kind=kind)
        locks.rlock("b", kind="node", ttl=10)
    lines = [each.getMessage() for each in caplog.records if getattr(each, "lease_event", "") == "preset"]
    assert [line.partition(" is a preset of timing: ")[0] for line in lines] == [
        "kind 'workflow'",
        "kind 'batch'",
        "kind 'node'",
    ]
    assert lines[0].endswith("ttl 300 s, renewed every 180 s")
    assert lines[2].endswith("ttl 120 s, renewed every 72 s")
