"""Services on the embedded store, and tests that rely on wake-ups alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasehold
import leasehold.core.timing
import leasehold.runtime.signals

from .service import Service
from .work import TTL


@pytest.fixture(autouse=True)
def hear_signals() -> Iterator[None]:
    """A job in the background of a shell ignores SIGINT, and so would its children."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits relies on being called."""
    monkeypatch.setattr(leasehold.core.timing, "FALLBACK", TTL)


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    service = Service(f"sqlite:///{tmp_path}/leases.db", getattr(request, "param", 20))
    yield service
    service.close()
