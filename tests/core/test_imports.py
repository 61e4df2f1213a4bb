"""What importing leasehold costs: nothing that it does not need."""

from __future__ import annotations

import subprocess
import sys

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


def test_threads_on_sqlite_need_neither_asyncio_nor_logging() -> None:
    used = imported_by(
        "import leasehold, tempfile, os\n"
        "folder = tempfile.mkdtemp()\n"
        "with leasehold.connect(f'sqlite:///{folder}/x.db') as locks:\n"
        "    with locks.lock('x'): pass"
    )
    assert "sqlite3" in used
    assert not used & {"asyncio", "logging", "dataclasses", *DRIVERS}
