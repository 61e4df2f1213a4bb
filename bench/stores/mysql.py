"""MySQL, measured as MariaDB is."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from . import mariadb
from .mariadb import PAIRS, filling, prepare  # noqa: F401

from servers.mysql import MySQL  # isort: skip

TITLE = "MySQL"
ABOUT = mariadb.ABOUT.replace("MariaDB on", "MySQL on").replace("flushed", "with its binary log, both flushed")


class Durable(MySQL):
    quick = []  # noqa: RUF012


def peers(folder: Path) -> AbstractContextManager[dict[str, tuple[str, str]]]:
    return mariadb.peers(folder, Durable)
