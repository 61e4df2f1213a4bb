"""The resource refuses a holder that was overtaken: E7, on real servers, with a process that is really paused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymongo
import pymongo.errors
import pytest
import redis.asyncio
import sqlalchemy as sa

import leasehold
from leasehold import aio, fence
from leasehold.fence import mongo as mongo_fence
from leasehold.fence import redis as redis_fence

from .resources import KINDS, Redis, Sql, SqlTable, accounts, fences

HERE = Path(__file__).parent
URLS = {
    "sql": ("sqlite", "postgresql", "mariadb"),
    "sql_table": ("sqlite", "postgresql", "mariadb"),
    "mongo": ("mongodb",),
    "redis": ("redis", "valkey"),
    "file": ("file",),
}
EACH = [(kind, server) for kind, servers in URLS.items() for server in servers]


def nothing() -> None: ...


@pytest.fixture
def url_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    def url(server: str) -> str:
        if server == "file":
            return str(tmp_path / "account")
        if server == "sqlite":
            return f"sqlite:///{tmp_path}/accounts.db"
        found = str(request.getfixturevalue(f"{server}_server").url)
        scheme, _, rest = found.partition("://")
        drivers = {"postgresql": "postgresql+psycopg", "mariadb": "mysql+pymysql"}
        return f"{drivers[scheme]}://{rest}" if scheme in drivers else found

    return url


@pytest.fixture
def locks() -> Iterator[leasehold.Locks]:
    with leasehold.connect(f"memory://{uuid.uuid4().hex}", ttl=30) as locks:
        yield locks


@pytest.fixture
def resource(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> Iterator[Any]:
    kind, server = request.param
    resource = KINDS[kind](url_of(server), nothing)
    resource.create()
    yield resource
    resource.close()


@pytest.mark.server
@pytest.mark.parametrize(("kind", "server"), EACH)
def test_a_late_write_is_refused(kind: str, server: str, url_of: Callable[[str], str], tmp_path: Path) -> None:
    """A is paused with its write on the way, B takes over and writes, A goes on: refused, and B's value stays."""
    leases, url = f"sqlite:///{tmp_path}/leases.db", url_of(server)
    resource = KINDS[kind](url, nothing)
    resource.create()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(HERE / "late.py"), leases, kind, url]
    late = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert late.stdout is not None
        assert late.stdout.readline() == "stopping\n"
        _, status = os.waitpid(late.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        with leasehold.connect(leases) as locks, locks.lock("account:1", ttl=30, timeout=60) as lease:
            resource.write(lease, 50)
            os.kill(late.pid, signal.SIGCONT)
            # (The file finds another version and would read again, but by then it knows that its lease is lost.)
            assert late.communicate(timeout=60)[0].split() == ["LeaseLost" if kind == "file" else "StaleToken"]
            assert resource.value() == 50
            resource.write(lease, 40)  # the holder goes on, with the same token
            assert resource.value() == 40
    finally:
        late.kill()
        late.wait()
        assert late.stdout is not None
        late.stdout.close()
        resource.close()


@pytest.mark.server
@pytest.mark.parametrize("resource", EACH, indirect=True)
def test_only_exclusive_leases_pass(resource: Any, locks: leasehold.Locks) -> None:
    """Fencing: leases that are not exclusive are refused; lost ones too, before anything is sent."""
    for shared in (locks.semaphore("pool", limit=3), locks.rwlock("page").read()):
        with shared as lease, pytest.raises(ValueError, match="not exclusive"):
            resource.write(lease, 1)
    with locks.all_of("a", "b") as both:
        with pytest.raises(ValueError, match="several names"):
            resource.write(both, 1)
        with pytest.raises(ValueError, match="has no name"):
            fence.part(both, "c")
        resource.write(fence.part(both, "b"), 1)
    with locks.rlock("again") as lease:
        resource.write(lease, 1)
    with locks.rwlock("page").write() as lease:
        resource.write(lease, 2)
    with pytest.raises(leasehold.LeaseLost):
        resource.write(lease, 3)
    assert resource.value() == 2


@pytest.mark.server
@pytest.mark.parametrize("resource", [each for each in EACH if each[0] == "sql_table"], indirect=True)
def test_a_table_of_tokens_keeps_names_apart(resource: SqlTable, locks: leasehold.Locks) -> None:
    """Reference, names: kept whole; nothing is folded, cut or padded."""
    with locks.lock("first") as old, locks.lock("second") as new, resource.engine.begin() as connection:
        for name in ("a", "A", "a ", "ä", "é", "e\u0301", "x" * 512, "🔒"):
            assert fences.check(connection, new, name) == new.token
        for name in ("b", "aa", "x" * 511):
            assert fences.check(connection, old, name) == old.token
        for name in ("a", "x" * 512):
            with pytest.raises(fence.StaleToken):
                fences.check(connection, old, name)


@pytest.mark.server
@pytest.mark.parametrize("resource", [("sql_table", "postgresql")], indirect=True)
async def test_a_table_of_tokens_with_asyncio(resource: SqlTable, url_of: Callable[[str], str]) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url_of("postgresql"))
    async with aio.connect(f"memory://{uuid.uuid4().hex}") as locks:
        async with locks.lock("account:1") as lease, engine.begin() as connection:
            assert await connection.run_sync(fences.check, lease) == lease.token
            await connection.execute(sa.update(accounts).values(balance=7))
    await engine.dispose()
    assert resource.value() == 7


@pytest.mark.server
@pytest.mark.parametrize("resource", [("sql_table", "postgresql"), ("sql_table", "mariadb")], indirect=True)
def test_a_later_holder_waits_for_the_transaction(resource: SqlTable, locks: leasehold.Locks) -> None:
    """Between the check and the commit of one transaction no other passes with the same name."""
    import threading

    passed = threading.Event()

    def later() -> None:
        with resource.engine.begin() as connection:
            fences.check(connection, new, "account:1")
            passed.set()

    with locks.lock("first") as old, locks.lock("second") as new:
        with resource.engine.begin() as connection:
            fences.check(connection, old, "account:1")
            thread = threading.Thread(target=later)
            thread.start()
            assert not passed.wait(0.3)
            connection.execute(sa.update(accounts).values(balance=old.token % 1000))
        thread.join(60)
        assert passed.is_set()
        with resource.engine.begin() as connection, pytest.raises(fence.StaleToken):
            fences.check(connection, old, "account:1")


@pytest.mark.server
@pytest.mark.parametrize("resource", [("redis", "redis")], indirect=True)
async def test_redis_fence_with_asyncio_refuses_an_older_token(resource: Redis, url_of: Callable[[str], str]) -> None:
    client = redis.asyncio.Redis.from_url(url_of("redis"))
    guard = redis_fence.Fence(client, "account:1:fence")
    async with aio.connect(f"memory://{uuid.uuid4().hex}") as locks:
        async with locks.lock("first") as old, locks.lock("second") as new:
            assert await guard.run_async(new, ("SET", "account:1", 5), ("GET", "account:1")) == [b"OK", b"5"]
            with pytest.raises(fence.StaleToken):
                await guard.run_async(old, ("SET", "account:1", 6))
    await client.aclose()
    assert resource.value() == 5


@pytest.mark.server
@pytest.mark.parametrize("resource", [("mongo", "mongodb")], indirect=True)
def test_the_forms_of_a_mongodb_update(resource: Any, locks: leasehold.Locks) -> None:
    """Operators, a pipeline, a whole document, an upsert; each leaves the token behind."""
    every = resource.accounts
    with locks.lock("first") as old, locks.lock("second") as new:
        every.update_one(*mongo_fence.guarded({"_id": 1}, [{"$set": {"balance": 1}}], new))
        assert every.find_one({"_id": 1}) == {"_id": 1, "balance": 1, "token": new.token}
        every.replace_one(*mongo_fence.guarded({"_id": 1}, {"balance": 2}, new))
        assert every.find_one({"_id": 1}) == {"_id": 1, "balance": 2, "token": new.token}
        writing = mongo_fence.guarded({"_id": 2}, {"$inc": {"balance": 3}}, new, upsert=True)
        made = every.update_one(*writing, upsert=True)
        mongo_fence.check(made, new, upsert=True)
        with pytest.raises(ValueError, match="upsert=True"):
            mongo_fence.check(made, new)
        assert every.find_one({"_id": 2}) == {"_id": 2, "balance": 3, "token": new.token}
        found = every.find_one_and_update(*mongo_fence.guarded({"_id": 1}, {"$inc": {"balance": 1}}, old))
        with pytest.raises(fence.StaleToken):
            mongo_fence.check(found, old)
        with pytest.raises(pymongo.errors.DuplicateKeyError):
            every.update_one(*mongo_fence.guarded({"_id": 2}, {"$inc": {"balance": 3}}, old, upsert=True), upsert=True)
        with pytest.raises(ValueError, match="_id"):
            mongo_fence.guarded({"balance": 2}, {"$inc": {"balance": 3}}, old, upsert=True)
        writing = mongo_fence.guarded({"_id": 3}, {"$set": {"balance": 3}}, new, upsert=True)
        before = every.find_one_and_update(*writing, upsert=True)
        assert before is None, "there was none"
        mongo_fence.check(before, new, upsert=True)
        writing = mongo_fence.guarded({"_id": 3}, {"$set": {"balance": 4}}, new)
        empty = every.find_one_and_update(*writing, projection={"_id": False, "nothing": True})
        assert empty == {}
        mongo_fence.check(empty, new)


@pytest.mark.server
@pytest.mark.parametrize("resource", [("mongo", "mongodb")], indirect=True)
def test_refused_delete_is_a_stale_token(resource: Any, locks: leasehold.Locks) -> None:
    every = resource.accounts
    with locks.lock("first") as old, locks.lock("second") as new:
        every.update_one(*mongo_fence.guarded({"_id": 1}, {"$set": {"balance": 1}}, new))
        late = {"_id": 1, **mongo_fence.condition(old)}
        for delete in (every.delete_one, every.delete_many, every.find_one_and_delete):
            with pytest.raises(fence.StaleToken):
                mongo_fence.check(delete(late), old)
        assert every.count_documents({}) == 1
        mongo_fence.check(every.delete_one({"_id": 1, **mongo_fence.condition(new)}), new)
        assert every.count_documents({}) == 0


@pytest.mark.server
@pytest.mark.parametrize("resource", [("mongo", "mongodb")], indirect=True)
def test_results_that_do_not_tell_of_a_refused_write_are_a_type_error(resource: Any, locks: leasehold.Locks) -> None:
    every = resource.accounts
    with locks.lock("x") as lease:
        several = every.bulk_write([pymongo.UpdateOne(*mongo_fence.guarded({"_id": 1}, {"$set": {"a": 1}}, lease))])
        for result in (several, every.insert_one({}), True, 1, "text", [{}]):
            with pytest.raises(TypeError, match=f"not {type(result).__name__}"):
                mongo_fence.check(result, lease)
        unacknowledged = every.with_options(write_concern=pymongo.WriteConcern(0))
        for result in (unacknowledged.delete_one({"_id": 2}), unacknowledged.update_one({"_id": 2}, {"$set": {}})):
            with pytest.raises(pymongo.errors.InvalidOperation):
                mongo_fence.check(result, lease)


@pytest.mark.server
def test_tokens_of_any_length_are_compared_by_redis(
    locks: leasehold.Locks, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared as text: above 2^53 too."""
    server = request.getfixturevalue("redis_server")
    resource = Redis(server.url, nothing)
    resource.create()
    guard = redis_fence.Fence(resource.client, "f")
    refused = []
    with locks.lock("x") as lease:
        for token in (9, 10, 9, 2**53, 2**53 + 1, 2**53, 2**63 - 1):
            monkeypatch.setattr(leasehold.Lease, "token", token)
            try:
                guard.run(lease)
            except fence.StaleToken as error:
                refused.append(error.token)
    assert refused == [9, 2**53]
    assert int(resource.client.get("f")) == 2**63 - 1
    resource.close()


async def test_swap_of_an_async_resource_is_made_again_after_another_write(locks: leasehold.Locks) -> None:
    """Another's write in between: it is read again, and the change made anew."""

    class Cell:
        version, token, value, races = 0, 0, 1, 1

        async def read(self) -> tuple[int, int, int]:
            return self.version, self.token, self.value

        async def write(self, version: int, token: int, value: int) -> bool:
            if self.races:
                self.races, self.version, self.value = 0, self.version + 1, 10
            if version != self.version:
                return False
            self.version, self.token, self.value = version + 1, token, value
            return True

    cell = Cell()
    with locks.lock("first") as old, locks.lock("second") as new:
        assert await fence.swap_async(cell, new, lambda value: value + 1) == 11
        with pytest.raises(fence.StaleToken) as refused:
            await fence.swap_async(cell, old, lambda value: value + 1)
        assert refused.value.token == old.token
    assert (cell.version, cell.token, cell.value) == (2, new.token, 11)


def test_other_databases_are_refused(locks: leasehold.Locks) -> None:
    class Elsewhere:
        class dialect:
            name = "oracle"

    with locks.lock("x") as lease, pytest.raises(ValueError, match="token column"):
        fences.check(Elsewhere(), lease)  # type: ignore[arg-type]


def test_fenced_update_of_a_missing_row_is_a_stale_token(tmp_path: Path, locks: leasehold.Locks) -> None:
    resource = Sql(f"sqlite:///{tmp_path}/accounts.db", nothing)
    resource.create()
    with locks.lock("x") as lease, resource.engine.begin() as connection:
        connection.execute(sa.delete(accounts))
        with pytest.raises(fence.StaleToken):
            fence_sql_update(connection, lease)
    resource.close()


def fence_sql_update(connection: sa.Connection, lease: Any) -> None:
    from leasehold.fence import sql

    sql.execute(connection, sa.update(accounts).values(balance=1), accounts.c.token, lease)
