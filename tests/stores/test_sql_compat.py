"""The private names of drivers that ``compat.py`` uses mean what they did. Read these tests first when one fails."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import aiomysql
import psycopg_pool
import pymysql
import pytest

from leasehold.runtime.ready import readable
from leasehold.stores.mysql import compat
from leasehold.stores.postgresql.compat import configure_of


def place(server: Any, **more: Any) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": server.port, "user": "root", "autocommit": True, **more}


@pytest.mark.server
def test_pymysql_shows_its_socket_and_closes_it_at_once(mariadb_server: Any) -> None:
    raw = pymysql.connect(**place(mariadb_server))
    found = compat.socket_of(raw)
    assert isinstance(found, socket.socket)
    assert found.getpeername() == ("127.0.0.1", mariadb_server.port)
    assert not readable(found, within=0)
    compat.close_at_once(raw)
    assert compat.socket_of(raw) is None
    assert not raw.open
    assert found.fileno() == -1


@pytest.mark.server
def test_pymysql_ends_a_statement_after_its_limit(mariadb_server: Any) -> None:
    raw = pymysql.connect(**place(mariadb_server))
    compat.limit(raw, 30)
    assert raw.query("SELECT SLEEP(0.1)") == 1
    compat.limit(raw, 0.2)
    began = time.monotonic()
    with pytest.raises(pymysql.err.OperationalError, match="timed out"):
        raw.query("SELECT SLEEP(20)")
    assert time.monotonic() - began < 15
    assert not raw.open


@pytest.mark.server
async def test_aiomysql_shows_results_and_ends_what_waits(mariadb_server: Any) -> None:
    raw = await aiomysql.connect(**place(mariadb_server))
    await raw.query("SELECT 7")
    assert compat.result_of(raw).rows == ((7,),)
    await raw.query("CREATE TEMPORARY TABLE mysql.numbers (number BIGINT)")
    await raw.query("INSERT INTO mysql.numbers VALUES (LAST_INSERT_ID(5))")
    assert (compat.result_of(raw).affected_rows, compat.result_of(raw).insert_id) == (1, 5)
    assert not compat.is_stale(raw)
    waiting = asyncio.ensure_future(raw.query("SELECT SLEEP(20)"))
    await asyncio.sleep(0.1)
    compat.abort(raw)
    with pytest.raises(pymysql.err.OperationalError):
        await asyncio.wait_for(waiting, 10)
    assert compat.is_stale(raw)
    raw.close()


@pytest.mark.server
async def test_aiomysql_notices_a_connection_that_its_server_has_closed(mariadb_server: Any) -> None:
    raw = await aiomysql.connect(**place(mariadb_server))
    other = pymysql.connect(**place(mariadb_server))
    other.kill(raw.thread_id())
    other.close()
    async with asyncio.timeout(10):
        while not compat.is_stale(raw):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    raw.close()


@pytest.mark.server
def test_aiomysql_connection_is_closed_though_its_loop_is_gone(mariadb_server: Any) -> None:
    async def connect() -> tuple[Any, Any]:
        raw = await aiomysql.connect(**place(mariadb_server))
        return raw, raw.thread_id()

    loop = asyncio.new_event_loop()
    raw, number = loop.run_until_complete(connect())
    loop.close()
    compat.close_without_loop(raw)
    assert raw.closed
    other = pymysql.connect(**place(mariadb_server))
    ends = time.monotonic() + 10
    while other.cursor().execute(f"SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = {number}"):
        assert time.monotonic() < ends, "the server still has it"
        time.sleep(0.01)
    other.close()


@pytest.mark.server
async def test_aiomysql_pool_shows_how_it_connects_and_refuses_once_it_is_closed(mariadb_server: Any) -> None:
    options = place(mariadb_server, password="")
    pool = await aiomysql.create_pool(0, 2, **options)
    assert dict(compat.options_of(pool)) == options
    pool.close()
    with pytest.raises(RuntimeError, match="closing"):
        await pool.acquire()
    await pool.wait_closed()


@pytest.mark.parametrize("kind", [psycopg_pool.ConnectionPool, psycopg_pool.AsyncConnectionPool])
def test_psycopg_pool_shows_what_makes_its_connections_ready(kind: Any) -> None:
    def configure(raw: Any) -> None: ...

    assert configure_of(kind("", open=False, configure=configure)) is configure
    assert configure_of(kind("", open=False)) is None
