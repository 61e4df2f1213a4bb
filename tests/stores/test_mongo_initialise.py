"""A7: three instances started together on an empty database initialise it once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.server

SCRIPT = Path(__file__).with_name("mongo_initialise.py")


def rounds(url: str, way: str, count: int) -> list[tuple[int, int]]:
    """(how many initialised, how many records) of each round."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), url, way, str(count)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(found) == count
    return found  # type: ignore[return-value]


def own_database(server: Any, name: str) -> str:
    return str(server.url).replace("/leasehold", f"/{name}")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_of_three_initialises_fifty_times(mongodb_server: Any) -> None:
    assert rounds(own_database(mongodb_server, "initialise"), "leasehold", 50) == [(1, 1)] * 50


def test_with_the_faulty_filter_of_the_document_several_do(mongodb_server: Any) -> None:
    """The control: were this to pass as well, the test above would prove nothing."""
    found = rounds(own_database(mongodb_server, "faulty"), "faulty", 3)
    assert any(initialised > 1 and records > 1 for initialised, records in found), found
