"""What the hostile suite runs on, and for how long: `make hostile` sets the limits higher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from servers.plugin import shared
from servers.redis import Redis

SERVERS = ("redis", "postgresql", "mariadb", "mysql", "mongodb", "etcd", "zookeeper")
STORES = ("sqlite", *SERVERS, "redlock")
SECONDS = float(os.environ.get("HOSTILE_SECONDS", "5"))
THREADS = int(os.environ.get("HOSTILE_THREADS", "150"))
HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def redlock_nodes() -> Iterator[list[str]]:
    """Addresses of three nodes."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(contextmanager(shared)(Redis)) for _ in range(3)]
        yield [f"127.0.0.1:{node.port}" for node in nodes]


def url_of(store: str, request: pytest.FixtureRequest, folder: Path) -> str:
    if store == "sqlite":
        return f"sqlite:///{folder}/leases.db"
    if store == "redlock":
        return "redlock://" + ",".join(request.getfixturevalue("redlock_nodes"))
    return str(request.getfixturevalue(f"{store}_server").url)


def run_program(program: str, *arguments: object, limit: float) -> dict[str, Any]:
    """Run a program of this folder in a process of its own; what it prints last is its report, as JSON."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(HERE / program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{program} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert lines, f"{program} printed no report\n{done.stderr}"
    report: dict[str, Any] = json.loads(lines[-1])
    return report
