"""What the tests of the SQL stores know about each server beyond its URL."""

import socket
import threading
from typing import Any

import psycopg
import pymysql

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

    def at(self, port: int) -> str:
        """The URL by way of a proxy."""
        return self.url.replace(f":{self.port}/", f":{port}/")


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
