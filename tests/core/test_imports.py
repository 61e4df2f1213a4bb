"""What importing leasehold costs: nothing that it does not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ["asyncio", "argparse", "click", "logging", "dataclasses", "inspect", "sqlite3", "subprocess", "ssl", "socket"]
DRIVERS = [
    "redis",
    "valkey",
    "pymongo",
    "psycopg",
    "pymysql",
    "asyncmy",
    "aiomysql",
    "sqlalchemy",
    "etcd3",
    "kazoo",
    "grpc",
]


def imported_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_import_loads_no_driver_and_no_cli_library() -> None:
    assert not imported_by("import leasehold") & {*HEAVY, *DRIVERS}


def test_all_that_is_public_is_reached_from_the_package() -> None:
    """Also the modules, and what is loaded late; in a process that has imported nothing else."""
    used = imported_by("import leasehold\nassert leasehold.fence.token\nassert leasehold.Term and leasehold.Outcome")
    assert not used & {"asyncio", *DRIVERS}
    imported_by("import leasehold\nassert leasehold.aio.connect and leasehold.aio.Term is not leasehold.Term")
    imported_by("from leasehold import *\nassert Outcome and Member and Term and OnceFailed and TooManyOutcomes")
    imported_by("from leasehold.aio import *\nassert Outcome and Member and Term and OnceFailed and TooManyOutcomes")
    imported_by(
        "import leasehold\n"
        "assert {'aio', 'fence', *leasehold.__all__} <= set(dir(leasehold))\n"
        "from leasehold import aio\n"
        "from leasehold.kinds.group import membership\n"
        "from leasehold.kinds.once import outcome\n"
        "assert aio.Outcome is leasehold.Outcome is outcome.Outcome\n"
        "assert aio.Member is leasehold.Member is membership.Member\n"
        "assert not hasattr(leasehold, 'nothing') and not hasattr(aio, 'nothing')"
    )


def test_threads_on_sqlite_need_neither_asyncio_nor_logging() -> None:
    used = imported_by(
        "import leasehold, tempfile, os\n"
        "folder = tempfile.mkdtemp()\n"
        "with leasehold.connect(f'sqlite:///{folder}/x.db') as locks:\n"
        "    with locks.lock('x'): pass"
    )
    assert "sqlite3" in used
    assert not used & {"asyncio", "logging", "dataclasses", *DRIVERS}


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{folder}/leases.db"])
def test_refused_acquire_loads_no_module(url: str, tmp_path: Path) -> None:
    """A signal handler that acquires in the middle of an import would find half a module."""
    imported_by(
        "import leasehold, sys\n"
        f"with leasehold.connect({url.format(folder=tmp_path)!r}) as locks:\n"
        "    with locks.lock('a'):\n"
        "        before = set(sys.modules)\n"
        "        try: locks.lock('a').acquire(timeout=0)\n"
        "        except leasehold.AcquireTimeout: pass\n"
        "        assert set(sys.modules) == before, set(sys.modules) - before"
    )
