"""What the tests of the SQL stores know about each server beyond its URL."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pymysql
import pytest

from leasehold.core.protocol import Ask
from leasehold.stores.mysql import tasks as mysql_tasks
from leasehold.stores.mysql import threads as mysql_threads
from leasehold.stores.postgresql import tasks as postgresql_tasks
from leasehold.stores.postgresql import threads as postgresql_threads
from leasehold.stores.sql.requests import Statement
from leasehold.testing.handles import eventually
from leasehold.testing.inside import core
from servers.mysql import MariaDB, MySQL
from servers.postgresql import PostgreSQL

KINDS = {"postgresql": PostgreSQL, "mariadb": MariaDB, "mysql": MySQL}


class Database:
    """A running server as its administrator sees it."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.kind: str = server.kind
        self.url: str = server.url
        self.port: int = server.port

    @property
    def is_postgresql(self) -> bool:
        return self.kind == "postgresql"

    def connect(self, **options: Any) -> Any:
        if self.is_postgresql:
            return psycopg.connect(self.url, **{"autocommit": True, **options})
        place = {"host": "127.0.0.1", "port": self.port, "user": "root", "database": "leasehold", "charset": "utf8mb4"}
        return pymysql.connect(**{**place, "autocommit": True, **options})

    def sql(self, statement: str, *values: Any) -> list[Any]:
        return self.sql_with(statement, values)

    def sql_with(self, statement: str, values: Any) -> list[Any]:
        """With values by place or by name."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()

    def as_user(self, user: str, password: str = "", port: int = 0) -> str:
        """The URL for another user."""
        name = "postgres" if self.is_postgresql else "leasehold"
        secret = f":{password}" if password else ""
        return f"{self.kind}://{user}{secret}@127.0.0.1:{port or self.port}/{name}"

    def reload(self, done: Callable[[], Any]) -> None:
        """Have PostgreSQL read its settings; back when ``done``, asked by new connections, says that it has."""
        self.sql("SELECT pg_reload_conf()")
        eventually(done)

    def add_ann(self) -> None:
        """A user who has a password, and is asked for it."""
        if not self.is_postgresql:
            self.sql("CREATE USER ann IDENTIFIED BY 'right'")
            return
        self.sql("CREATE ROLE ann LOGIN PASSWORD 'right'")
        rules = self.server.data / "pg_hba.conf"
        rules.write_text("host all ann 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n")

        def asked() -> bool:
            try:
                psycopg.connect(self.as_user("ann", "wrong")).close()
            except psycopg.OperationalError:
                return True
            return False

        self.reload(asked)

    def at(self, port: int) -> str:
        """The URL by way of a proxy."""
        return self.url.replace(f":{self.port}/", f":{port}/")


def ask(name: str, **more: Any) -> Ask:
    """Of a new attempt."""
    return Ask(name, os.urandom(8).hex(), "ann", "lock", None, 60_000_000, **more)


def is_swap(request: Any) -> bool:
    """Whether steps are about to write a row that was read."""
    return isinstance(request, Statement) and "%(acquired)s" in request.sql


def is_swap_of_all(request: Any) -> bool:
    """Whether they are about to write the rows of several names."""
    return isinstance(request, Statement) and ("%(rows)s" in request.sql or "%(acquired0)s" in request.sql)


def is_read_of_all(request: Any) -> bool:
    return isinstance(request, Statement) and request.sql.startswith("SELECT l.name") and "LIMIT" not in request.sql


def is_join(request: Any) -> bool:
    """Whether they are about to take a name or to join its queue, in one statement."""
    return isinstance(request, Statement) and "%(ttl)s" in request.sql and "json" in request.sql.lower()


def before(kind: Callable[[Any], bool], steps: Any, act: Callable[[], Any]) -> Any:
    """The steps of a store; ``act`` is called whenever they are about to do something of that kind."""
    answer = error = None
    while True:
        try:
            request = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as end:
            return end.value
        if kind(request):
            act()
        answer = error = None
        try:
            answer = yield request
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as failed:
            error = failed


def inside(locks: Any) -> Any:
    """The registry of a ``Locks``: its store, driver and counters. Tests of SQL look into a ``Locks`` here alone."""
    return core(locks)


def hears(locks: Any) -> bool:
    """Whether its waiters rely on wake-ups. Threads only; also starts the listener."""
    return bool(inside(locks).driver.listen("", None))


async def begins_to_hear(locks: Any) -> None:
    """The same for asyncio: back when its waiters rely on wake-ups."""
    async with asyncio.timeout(60):
        while not await inside(locks).driver.listen("", None):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def at_rest(locks: Any) -> None:
    """Until the keeper, which the first lease has started, has tidied up and sleeps: it sends nothing more by itself.

    To be called after the first lease, and before others come."""
    eventually(lambda: inside(locks).soonest == float("inf"))


def weigh(database: Database, cursor: Any) -> None:
    """See to it that the server ends our statement, not this transaction, when each has a row that the other wants."""
    if database.is_postgresql:  # who looks first is who gives way
        cursor.execute("SET LOCAL deadlock_timeout = '60s'")
    else:  # who has changed less gives way
        cursor.execute("CREATE TEMPORARY TABLE ballast (n INT PRIMARY KEY) ENGINE=InnoDB")
        cursor.executemany("INSERT INTO ballast VALUES (%s)", [(n,) for n in range(200)])


def at_once(count: int, work: Callable[[], Any]) -> None:
    """Do it in so many threads, until all are done."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Counter:
    """A TCP proxy that counts round trips: how often the client speaks after the server has."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.trips = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            turn = {"client": True}
            threading.Thread(target=self._carry, args=(client, server, turn, True), daemon=True).start()
            threading.Thread(target=self._carry, args=(server, client, turn, False), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, turn: dict[str, bool], asks: bool) -> None:
        try:
            while data := source.recv(65536):
                if asks and turn["client"]:
                    self.trips += 1
                turn["client"] = not asks
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                end.close()

    def close(self) -> None:
        self._listener.close()


def python(code: str, *args: object, **more: Any) -> subprocess.Popen[str]:
    """A child that runs ``code`` with ``args`` in sys.argv; it prints a line when it is ready."""
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)


HOLD = """
import sys, leasehold
locks = leasehold.connect(sys.argv[1], namespace=sys.argv[2], ttl=float(sys.argv[4]))
lease = locks.lock(sys.argv[3]).acquire()
print(lease.token, flush=True)
sys.stdin.readline()
lease.release()
locks.close()
"""


def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent from now on, by any connection of any driver of ours."""
    sent: list[str] = []
    for connection in (postgresql_tasks.AsyncPostgreSQLConnection, mysql_tasks.AsyncMySQLConnection):

        async def aexecute(self: Any, statement: Any, limit: float, original: Any = connection.execute) -> Any:
            sent.append(statement.sql)
            return await original(self, statement, limit)

        monkeypatch.setattr(connection, "execute", aexecute)
    for connection in (postgresql_threads.PostgreSQLConnection, mysql_threads.MySQLConnection):

        def execute(self: Any, statement: Any, limit: float, original: Any = connection.execute) -> Any:
            sent.append(statement.sql)
            return original(self, statement, limit)

        monkeypatch.setattr(connection, "execute", execute)
    return sent
