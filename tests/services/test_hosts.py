"""Services under uvicorn, gunicorn and ``leasehold run``, and on every store: D9, in real processes."""

from __future__ import annotations

import signal
import sys
import uuid
from pathlib import Path

import pytest

from kinds.stores import STORES, open_store

from .service import HERE, Service, all_done, cut, script, sides
from .work import NAMES


def uvicorn(service: Service) -> None:
    service.start(sys.executable, "-m", "uvicorn", "app_asgi:app", "--port", "0", "--lifespan", "on")


def test_service_under_uvicorn_is_drained(service: Service) -> None:
    """Uvicorn ends itself with the signal that it was sent, after its own shutdown."""
    uvicorn(service)
    service.signal(signal.SIGTERM)
    assert service.ended() in (0, -signal.SIGTERM), service.errors
    all_done(service)
    assert service.logged("Application shutdown complete")


@cut
def test_service_under_uvicorn_is_cut_after_the_grace(service: Service) -> None:
    uvicorn(service)
    service.signal(signal.SIGTERM)
    assert service.ended() in (0, -signal.SIGTERM), service.errors
    assert service.said("cut") == sorted(NAMES)
    assert service.logged("3 leases lost: 'one', 'three', 'two'")
    service.check_handed_on()


def gunicorn(service: Service, *words: str) -> None:
    service.start(
        *(sys.executable, "-m", "gunicorn", "app_wsgi:app", "--bind", "127.0.0.1:0", "--workers", "1"),
        *("--worker-tmp-dir", "/tmp", "--no-control-socket", *words),
    )


@pytest.mark.parametrize("worker", ["sync", "gthread"])
def test_service_under_gunicorn_is_drained(service: Service, worker: str) -> None:
    gunicorn(service, "--worker-class", worker)
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    all_done(service)


@cut
def test_service_under_gunicorn_is_cut_after_the_grace(service: Service) -> None:
    gunicorn(service)
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    assert service.said("cut") == sorted(NAMES)
    assert service.logged("3 leases lost: 'one', 'three', 'two'")
    service.check_handed_on()


def under_run(service: Service, side: str, *words: str) -> None:
    file = "script.py" if side == "threads" else "script_aio.py"
    command = [sys.executable, str(HERE / file), service.url, str(service.grace), "waits"]
    service.start(sys.executable, "-m", "leasehold", "run", "service", "--url", service.url, *words, "--", *command)


@sides
def test_service_under_leasehold_run_is_drained(service: Service, side: str) -> None:
    under_run(service, side)
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    all_done(service)
    assert service.locks.inspect("service") is None


def test_second_signal_ends_the_grace_under_leasehold_run(service: Service) -> None:
    service.at_long_work()
    under_run(service, "threads")
    service.signal(signal.SIGTERM)
    service.until(lambda: service.logged("drain begins"))
    service.signal_again(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    assert service.said("cut") == sorted(NAMES)
    assert service.logged("drain ended by a second signal")
    service.check_handed_on()


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "script_aio", "uvicorn", "gunicorn", "run", "cut"])
@pytest.mark.parametrize("name", [name for name in STORES if name != "sqlite"])
def test_successor_gets_the_leases_at_once_on_every_store(
    name: str, how: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The issue's scenario: the work ends, the successor has the leases at once; with a grace of 1 s it is cut."""
    namespace = f"t{uuid.uuid4().hex[:12]}"
    service = Service(open_store(name, request, tmp_path).url, 1.0 if how == "cut" else 20.0, namespace)
    try:
        if how == "uvicorn":
            uvicorn(service)
        elif how == "gunicorn":
            gunicorn(service)
        elif how == "run":
            under_run(service, "threads", "--namespace", namespace)
        else:
            script(service, "asyncio" if how == "script_aio" else "threads")
        service.signal(signal.SIGTERM)
        assert service.ended() in ((0, -signal.SIGTERM) if how == "uvicorn" else (0,)), service.errors
        if how == "cut":
            assert service.said("cut") == sorted(NAMES)
            assert service.logged("3 leases lost: 'one', 'three', 'two'")
            service.check_handed_on()
        else:
            all_done(service)
    finally:
        service.close()
