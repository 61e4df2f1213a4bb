"""PgBouncer in front of a PostgreSQL server."""

import shutil
import signal
from pathlib import Path

from .base import Server
from .postgresql import ROOT, PostgreSQL, query
from .wire import HOST


class PgBouncer(Server):
    """The same database and user as its target's, by way of a pool of so many connections."""

    kind = "pgbouncer"

    def __init__(self, target: PostgreSQL, mode: str = "transaction", size: int = 3) -> None:
        super().__init__()
        self._target = target
        self._mode = mode
        self._size = size

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{self.address}/postgres"

    def prepare(self) -> None:
        settings = {
            "listen_addr": HOST,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": self._mode,
            "default_pool_size": self._size,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        target = f"postgres = host={HOST} port={self._target.port} dbname=postgres user=postgres"
        self._config.write_text("\n".join(["[databases]", target, "[pgbouncer]", *lines, ""]))
        if ROOT:
            for path in (self.folder, self._config):
                shutil.chown(path, "nobody", "nogroup")

    def command(self) -> list[str]:
        return [self.program, str(self._config)]

    def before(self) -> list[str]:
        """As its target is run: it refuses root too."""
        return self._target.before()

    def change_mode(self, mode: str) -> None:
        """As an administrator would, while it runs."""
        self._mode = mode
        self.prepare()
        self.processes.signal(signal.SIGHUP)

    def ping(self, timeout: float) -> None:
        query(self.port, "SELECT 1", timeout)

    @property
    def _config(self) -> Path:
        return self.folder / "pgbouncer.ini"
