"""What is to be given back in the background is, whatever record of another name is damaged meanwhile."""

from __future__ import annotations

import base64
import secrets
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold.testing.handles import eventually

from .stores import url_of

pytestmark = [pytest.mark.server, pytest.mark.timeout(90)]

TTL = 90
NAMES = ["bad", "good-1", "good-2", "good-3"]
STORES = ("sqlite", "redis", "postgresql", "mariadb", "mysql", "mongodb", "etcd", "zookeeper")
AT_EXIT = """
import sys
import leasehold

first = leasehold.connect(sys.argv[1], namespace=sys.argv[2], ttl=90)
second = leasehold.connect(sys.argv[1], namespace=sys.argv[2], ttl=90)
held = [first.lock(name).acquire() for name in ("bad", "good-1")]
held += [second.lock(name).acquire() for name in ("good-2", "good-3")]
print("held", flush=True)
sys.stdin.readline()
"""


def damage(store: str, url: str, space: str) -> None:
    """Make the record of "bad" something that leasehold never writes, with the store's own driver."""
    globals()[f"_damage_{store}"](url, space)


def _damage_sqlite(url: str, space: str) -> None:
    connection = sqlite3.connect(url.partition("///")[2], isolation_level=None, timeout=10)
    connection.execute("UPDATE leasehold SET state = '{' WHERE name = 'bad' AND namespace = ?", (space,))
    connection.close()


def _damage_redis(url: str, space: str) -> None:
    import redis

    with redis.Redis.from_url(url) as client:
        assert client.hset(f"leasehold:{{{space}:bad}}", "h", b"\xff\xc1") == 0


def _damage_postgresql(url: str, space: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        done = connection.execute("UPDATE leasehold SET more = '{' WHERE name = 'bad' AND namespace = %s", (space,))
        assert done.rowcount == 1


def _damage_mysql(url: str, space: str) -> None:
    import pymysql
    from sqlalchemy.engine import make_url

    place = make_url(url)
    with pymysql.connect(
        host=place.host,
        port=place.port or 3306,
        user=place.username,
        password=place.password or "",
        database=place.database,
        autocommit=True,
    ) as connection:
        update = "UPDATE leasehold SET more = '{' WHERE name = 'bad' AND namespace = %s"
        assert connection.cursor().execute(update, (space,)) == 1


_damage_mariadb = _damage_mysql


def _damage_mongodb(url: str, space: str) -> None:
    import pymongo

    with pymongo.MongoClient[Any](url) as client:
        leases = client.get_default_database()["leasehold"]
        bad = {"$set": {"holders": "none", "queue": {"x": 1}, "token": "x"}}
        assert leases.update_one({"_id": {"ns": space, "name": "bad"}}, bad).modified_count == 1


def _damage_etcd(url: str, space: str) -> None:
    from stores.etcd_tools import ask

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    port = int(url.rpartition(":")[2])
    start = f"leasehold/{space}/h/bad\0".encode()
    found = ask(port, "kv/range", {"key": encoded(start), "range_end": encoded(start[:-1] + b"\1")})
    for each in found["kvs"]:
        ask(port, "kv/put", {"key": each["key"], "value": encoded(b"[2,{}]"), "ignore_lease": True})


def _damage_zookeeper(url: str, space: str) -> None:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=url.partition("://")[2])
    client.start(30)
    root = f"/leasehold/{space}"
    for epoch in client.get_children(root):
        for bucket in client.get_children(f"{root}/{epoch}"):
            if "bad" in client.get_children(f"{root}/{epoch}/{bucket}"):
                path = f"{root}/{epoch}/{bucket}/bad"
                for child in client.get_children(path):
                    client.set(f"{path}/{child}", b"\xff\xfe")
    client.stop()
    client.close()


@pytest.fixture(params=STORES)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str, Callable[[], None]]:
    url, space = url_of(request.param, request, tmp_path), secrets.token_hex(6)
    return url, space, lambda: damage(request.param, url, space)


def free(url: str, space: str) -> None:
    """Every good name can be acquired at once."""
    with leasehold.connect(url, namespace=space, ttl=5) as other:
        for name in NAMES[1:]:
            assert other.lock(name).acquire(timeout=15).release(), f"SAFETY: {name} leaked"


def test_damaged_record_keeps_no_other_dropped_lease_from_release(scene: tuple[str, str, Callable[[], None]]) -> None:
    url, space, spoil = scene
    locks = leasehold.connect(url, namespace=space, ttl=TTL)
    held = [locks.lock(name).acquire(timeout=30) for name in NAMES]
    spoil()
    while held:
        held.pop(0)  # nobody has it any more, so it is the keeper's to give back: first the bad one
    with leasehold.connect(url, namespace=space) as other:
        eventually(lambda: not [name for name in NAMES[1:] if other.inspect(name)], within=15)
    began = time.monotonic()
    locks.close()
    assert time.monotonic() - began < 15


def test_close_releases_every_lease_but_the_damaged_one(scene: tuple[str, str, Callable[[], None]]) -> None:
    url, space, spoil = scene
    locks = leasehold.connect(url, namespace=space, ttl=TTL)
    held = [locks.lock(name).acquire(timeout=30) for name in NAMES]
    spoil()
    locks.close()
    assert not any(lease.valid for lease in held)
    free(url, space)


def test_exit_releases_the_leases_of_every_locks(scene: tuple[str, str, Callable[[], None]]) -> None:
    url, space, spoil = scene
    with subprocess.Popen(
        [sys.executable, "-c", AT_EXIT, url, space], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin
        assert program.stdout
        assert program.stdout.readline() == "held\n"
        spoil()
        program.stdin.write("end\n")
        program.stdin.close()
        assert program.wait(30) == 0
    free(url, space)


def test_exit_releases_what_one_store_holds_while_another_hangs(tmp_path: Path) -> None:
    program_text = """
import sqlite3, sys
import leasehold

urls = [f"sqlite:///{path}" for path in sys.argv[1:]]
held = [leasehold.connect(url, ttl=90).lock("a").acquire() for url in urls]
writer = sqlite3.connect(sys.argv[1], isolation_level=None)
writer.execute("BEGIN IMMEDIATE")
"""
    paths = [str(tmp_path / f"{number}.db") for number in range(4)]
    subprocess.run([sys.executable, "-c", program_text, *paths], timeout=30, check=True)
    for path in paths[1:]:
        with leasehold.connect(f"sqlite:///{path}") as other:
            assert not other.inspect("a"), f"SAFETY: the lease in {path} leaked"
