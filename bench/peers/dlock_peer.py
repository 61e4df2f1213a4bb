"""sqlalchemy-dlock: advisory locks (PostgreSQL) and GET_LOCK (MySQL, MariaDB), a connection per lock held."""

from __future__ import annotations

from typing import Any

import sqlalchemy
from sqlalchemy_dlock import create_sadlock

from .threaded import Threaded


class Peer(Threaded):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        scheme, _, rest = target.partition("://")
        driver = "postgresql+psycopg" if scheme == "postgresql" else "mysql+pymysql"
        self._engine = sqlalchemy.create_engine(f"{driver}://{rest}")

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        connection = self._engine.connect()
        lock = create_sadlock(connection, name)
        while not lock.acquire(timeout=60):  # MariaDB knows no wait without end
            pass
        return lock, connection

    def release(self, handle: Any) -> None:
        lock, connection = handle
        lock.release()
        connection.close()

    def close(self) -> None:
        self._engine.dispose()
