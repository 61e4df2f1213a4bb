"""Multi-process mode of ``prometheus_client``: real workers of gunicorn."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from .scraping import until

HERE = Path(__file__).parent
WORKERS = 4


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Of gunicorn with four workers."""
    metrics, log = tmp_path / "metrics", tmp_path / "log"
    metrics.mkdir()
    (tmp_path / "conf.py").write_text("from app_metrics import child_exit\n")
    command = [
        *(sys.executable, "-m", "gunicorn", "app_metrics:app", "--preload", "--config", str(tmp_path / "conf.py")),
        *("--bind", "127.0.0.1:0", "--workers", str(WORKERS), "--worker-tmp-dir", "/tmp", "--no-control-socket"),
    ]
    path = os.pathsep.join([str(HERE), *sys.path])
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(metrics), "PYTHONPATH": path}
    with log.open("w") as errors, subprocess.Popen(command, env=environ, stderr=errors, cwd=HERE) as server:
        try:
            ends = time.monotonic() + 60
            while (found := re.search(r"Listening at: http://127.0.0.1:(\d+)", log.read_text())) is None:
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < ends, log.read_text()
                time.sleep(0.05)
            yield int(found[1])
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0, log.read_text()


def call(port: int) -> int:
    """Have a worker acquire and release; its process id."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/work", timeout=30) as answer:
        return int(answer.headers["X-Worker"])


def test_workers_of_gunicorn_export_their_sum(port: int) -> None:
    calls: Counter[int] = Counter()
    ends = time.monotonic() + 60
    while len(calls) < WORKERS:
        calls[call(port)] += 1
        assert time.monotonic() < ends, f"only {len(calls)} of {WORKERS} workers were called"
    found = until(port, "hold_seconds_count", calls.total(), kind="lock")
    # Each worker holds one lease, and the process that forked them another one, which is not theirs.
    found = until(port, "held", WORKERS + 1)
    assert found.of("acquire_seconds_count", store="memory", outcome="acquired") == calls.total() + WORKERS + 1
    assert found.of("store_seconds_count", operation="release") == calls.total()
    assert found.of("waiting") == 0

    os.kill(next(iter(calls)), signal.SIGKILL)  # what it counted stays, what it held does not
    ends = time.monotonic() + 60
    while len({call(port) for _ in range(20)} - {next(iter(calls))}) < WORKERS:
        assert time.monotonic() < ends, "the worker was not replaced"
    found = until(port, "held", WORKERS + 1)
    assert found.of("hold_seconds_count") > calls.total()
