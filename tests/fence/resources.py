"""Resources that are guarded by a fence, each with one way to write and one to read.

``pause`` is called at the last moment before a write leaves the process: where no look at the lease can help any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymongo
import pymongo.monitoring
import redis
import sqlalchemy as sa

from leasehold import fence
from leasehold.fence import mongo as mongo_fence
from leasehold.fence import redis as redis_fence
from leasehold.fence import sql as sql_fence

Pause = Callable[[], object]
metadata = sa.MetaData()
accounts = sa.Table(
    "fenced_accounts",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("balance", sa.Integer, nullable=False),
    sa.Column("token", sa.BigInteger),
)
fences = sql_fence.Fences(metadata)


class Sql:
    def __init__(self, url: str, pause: Pause) -> None:
        self.engine = sa.create_engine(url)
        self.pause = pause

    def create(self) -> None:
        with self.engine.begin() as connection:
            metadata.drop_all(connection)
            metadata.create_all(connection)
            connection.execute(sa.insert(accounts).values(id=1, balance=100))

    def value(self) -> int:
        with self.engine.begin() as connection:
            return int(connection.execute(sa.select(accounts.c.balance)).scalar_one())

    def write(self, lease: Any, value: int) -> None:
        statement = sa.update(accounts).where(accounts.c.id == 1).values(balance=value)
        with self.engine.begin() as connection:
            sa.event.listen(connection, "before_cursor_execute", lambda *_: self.pause())
            self.send(connection, statement, lease)

    def send(self, connection: sa.Connection, statement: sa.Update, lease: Any) -> None:
        sql_fence.execute(connection, statement, accounts.c.token, lease)

    def close(self) -> None:
        self.engine.dispose()


class SqlTable(Sql):
    """With the table of tokens in place of a token column."""

    def send(self, connection: sa.Connection, statement: sa.Update, lease: Any) -> None:
        fences.check(connection, lease)
        connection.execute(statement)


class _Listener(pymongo.monitoring.CommandListener):
    def __init__(self, pause: Pause) -> None:
        self.pause = pause

    def started(self, event: Any) -> None:
        if event.command_name == "update":
            self.pause()

    def succeeded(self, event: Any) -> None: ...

    def failed(self, event: Any) -> None: ...


class Mongo:
    def __init__(self, url: str, pause: Pause) -> None:
        self.client: pymongo.MongoClient[Any] = pymongo.MongoClient(url, event_listeners=[_Listener(pause)])
        self.accounts = self.client["fenced"]["accounts"]

    def create(self) -> None:
        self.accounts.drop()
        self.accounts.insert_one({"_id": 1, "balance": 100})

    def value(self) -> int:
        found = self.accounts.find_one({"_id": 1})
        assert found is not None
        return int(found["balance"])

    def write(self, lease: Any, value: int) -> None:
        result = self.accounts.update_one(*mongo_fence.guarded({"_id": 1}, {"$set": {"balance": value}}, lease))
        mongo_fence.check(result, lease)

    def close(self) -> None:
        self.client.close()


class Redis:
    def __init__(self, url: str, pause: Pause) -> None:
        class Pausing(redis.Connection):
            def send_packed_command(self, command: Any, check_health: bool = True) -> None:
                if b"EVALSHA" in b"".join(command):
                    pause()
                super().send_packed_command(command, check_health)

        self.client = redis.Redis(connection_pool=redis.ConnectionPool.from_url(url, connection_class=Pausing))
        self.fence = redis_fence.Fence(self.client, "account:1:fence")

    def create(self) -> None:
        self.client.flushall()
        self.client.set("account:1", 100)

    def value(self) -> int:
        return int(self.client.get("account:1"))  # type: ignore[arg-type]

    def write(self, lease: Any, value: int) -> None:
        assert self.fence.run(lease, ("SET", "account:1", value), ("INCR", "writes"))[0] in (b"OK", True)

    def close(self) -> None:
        self.client.close()
        self.client.connection_pool.disconnect()


class File:
    """Anything that can compare and set: here a file, whose number of writes is its version."""

    def __init__(self, url: str, pause: Pause) -> None:
        self.path = Path(url)
        self.pause = pause

    def create(self) -> None:
        self.path.write_text(json.dumps([0, 0, 100]))

    def value(self) -> int:
        return int(self.read()[2])

    def read(self) -> tuple[Any, int, Any]:
        version, token, value = json.loads(self.path.read_text())
        return version, token, value

    def swap(self, version: Any, token: int, value: Any) -> bool:
        if self.read()[0] != version:
            return False
        self.path.write_text(json.dumps([version + 1, token, value]))
        return True

    def write(self, lease: Any, value: int) -> None:
        file = self

        class Cell:
            def read(self) -> tuple[Any, int, Any]:
                return file.read()

            def write(self, version: Any, token: int, value: Any) -> bool:
                file.pause()
                return file.swap(version, token, value)

        fence.swap(Cell(), lease, lambda old: value)

    def close(self) -> None: ...


KINDS: dict[str, Any] = {"sql": Sql, "sql_table": SqlTable, "mongo": Mongo, "redis": Redis, "file": File}
