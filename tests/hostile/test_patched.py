"""Interpreters that are not as usual: without poll(2), as Windows and eventlet are; patched by gevent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .stores import run_program, url_of

pytestmark = pytest.mark.timeout(120)
PROMPT = 3.0
"""A push takes milliseconds, a death that is looked for half a second. Without either it takes 5 s."""


def live(how: str, store: str, request: pytest.FixtureRequest, folder: Path) -> None:
    report = run_program("patched.py", how, url_of(store, request, folder), limit=100)
    assert report["hand-over"] < PROMPT, report
    assert report.get("death", 0.0) < PROMPT, report
    assert report["lost"], report
    assert report["ticks"] >= 5, f"other threads stood still: {report}"


def on(*stores: str) -> pytest.MarkDecorator:
    marks = {"sqlite": ()}
    every = [pytest.param(store, marks=marks.get(store, pytest.mark.server)) for store in stores]
    return pytest.mark.parametrize("store", every)


@on("sqlite", "postgresql", "mariadb", "etcd")
def test_leases_work_without_poll(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    live("no-poll", store, request, tmp_path)


@on("sqlite", "redis")
def test_leases_work_under_gevent(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    pytest.importorskip("gevent")
    live("gevent", store, request, tmp_path)


def test_command_works_without_poll(tmp_path: Path) -> None:
    program = "import select, sys; del select.poll, select.epoll; from leasehold.cli import main; main()"
    words = ["run", "job", "--url", f"sqlite:///{tmp_path}/leases.db", "--", "sh", "-c", "exit 3"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr


LATE = """
import faulthandler, sys
faulthandler.dump_traceback_later(20, exit=True)
import leasehold
locks = leasehold.connect(sys.argv[1])
{before}
from gevent import monkey
monkey.patch_all()
try:
    {after}
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "locks.lock('job').acquire()"),
        ("lease = locks.lock('job').acquire()", "locks.lock('job').acquire(timeout=5)"),
        ("", "locks.all_of('a', 'b').acquire()"),
        ("", "leasehold.connect(sys.argv[1])"),
        ("from leasehold import aio", "import asyncio; asyncio.run(aio.connect(sys.argv[1]).lock('job').acquire())"),
    ],
)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_gevent_that_patches_too_late_is_refused(store: str, before: str, after: str, tmp_path: Path) -> None:
    pytest.importorskip("gevent")
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/leases.db"
    program = LATE.format(before=before, after=after)
    done = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, timeout=60)
    assert "before leasehold is imported" in done.stdout, done.stderr
