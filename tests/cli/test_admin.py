"""``doctor``, ``init`` and ``bench``, on the embedded store and on real servers."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pymongo
import pymysql
import pytest

from .shell import Shell, Stalls


def told(shell: Shell, *words: str, code: int = 0, url: str | None = None) -> list[dict[str, str]]:
    """The findings of a command that ends with ``code``."""
    answer = shell.do(*words, "--json", *(("--url", url) if url else ()))
    assert answer.returncode == code, answer.stderr + answer.stdout
    found: list[dict[str, str]] = json.loads(answer.stdout)
    return found


def levels(findings: list[dict[str, str]]) -> set[str]:
    return {finding["level"] for finding in findings}


def test_doctor_creates_no_file(shell: Shell) -> None:
    assert "does not exist yet" in told(shell, "doctor")[-1]["message"]
    assert not shell.database.exists()


def test_init_then_doctor_on_the_embedded_store(shell: Shell) -> None:
    assert levels(told(shell, "init")) == {"ok"}
    assert shell.database.exists()
    assert shell.do("run", "job", "--", "true").returncode == 0
    assert "records of 1 names" in told(shell, "doctor")[-1]["message"]


def test_doctor_says_what_is_wrong_with_a_file(shell: Shell) -> None:
    shell.database.write_bytes(b"this is a letter to my aunt " * 100)
    [found] = told(shell, "doctor", code=1)
    assert found["level"] == "error"
    assert found["advice"]
    answer = shell.do("doctor")
    assert answer.returncode == 1
    assert "not a database" in answer.stdout


def test_doctor_sees_records_of_a_newer_format(shell: Shell) -> None:
    told(shell, "init")
    with sqlite3.connect(shell.database) as database:
        columns = "namespace, name, format, version, token, boot, state, updated"
        database.execute(f"INSERT INTO leasehold ({columns}) VALUES ('', 'new', 99, 1, 1, '', '', 1)")
    database.close()
    assert told(shell, "doctor", code=1)[-1]["advice"] == "upgrade leasehold"


def test_doctor_warns_of_a_world_writable_file(shell: Shell) -> None:
    told(shell, "init")
    os.chmod(shell.database, 0o666)
    assert told(shell, "doctor")[-1]["level"] == "warning"


def test_options_without_effect_are_refused_by_doctor_init_and_bench(shell: Shell) -> None:
    for words in (
        ["doctor", "--url", "memory://"],
        ["init", "--print-sql"],
        ["init", "--from-legacy"],
        ["init", "--print-sql", "--dry-run", "--url", "postgresql://db/app"],
        ["bench", "--url", "memory://"],
        ["bench", "--processes", "1"],
        ["bench", "--leases", "0"],
        ["doctor", "extra"],
        ["init", "--namespace", "billing"],  # --namespace would have no effect
        ["init", "--from-legacy", "--namespace", "billing", "--url", "mongodb://db/app"],
        ["init", "--legacy-zone", "+00:00", "--url", "mysql://db/app"],
        ["init", "--from-legacy", "--legacy-zone", "CET", "--url", "mysql://db/app"],
        ["init", "--from-legacy", "--legacy-table", "a b", "--url", "mysql://db/app"],
        ["bench", "--namespace", "billing"],
    ):
        answer = shell.do(*words)
        assert (answer.returncode, answer.stdout) == (2, ""), words
        assert answer.stderr.startswith("leasehold: ")


def benched(shell: Shell, *words: str) -> None:
    """Check that ``bench`` has every figure, and that each figure is possible."""
    with Stalls() as stalls:
        answer = shell.do("bench", "--seconds", "200ms", "--processes", "2", "--leases", "7", "--json", *words)
    assert answer.returncode == 0, answer.stderr
    figures = json.loads(answer.stdout)
    for key in ("pair_threads", "pair_asyncio", "hand_off"):
        assert 0 < figures[key]["p50"] <= figures[key]["p99"]
    assert figures["contended"]["per_second"] > 0
    assert 0.5 <= figures["contended"]["fairness"] <= 1
    assert figures["held"]["leases"] == 7
    assert figures["held"]["lost"] == 0 or stalls.worst > 1, "a renewal is due 2 s before a ttl of 3 s ends"
    assert 0 < figures["held"]["share_of_a_core"] < 2
    assert 0 < figures["takeover"]["seconds"] < 20


def test_bench_measures_and_leaves_nothing(shell: Shell) -> None:
    benched(shell)
    assert "no lease is held" in shell.do("ls", "--namespace", "leasehold-bench").stderr
    shown = shell.do("bench", "--seconds", "200ms", "--processes", "2").stdout
    assert "hand-offs per second" in shown
    assert "100 leases held (ttl 3 s)" in shown
    assert "replaced after" in shown


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "mongodb", "postgresql", "mariadb", "mysql", "etcd", "zookeeper"])
def test_bench_on_a_server(shell: Shell, kind: str, request: pytest.FixtureRequest) -> None:
    benched(shell, "--url", request.getfixturevalue(f"{kind}_server").url)


ONE_HAND_OFF = """
from leasehold.cli import bench, main
bench.contend = lambda *_: [bench.Sample(1, 0.0, 1.0, 0), bench.Sample(2, 1.25, 2.0, 1)]
main()
"""


def test_bench_reports_a_single_hand_off(shell: Shell) -> None:
    """On a busy machine two processes may run one after the other: then there is one hand-off."""
    words = [sys.executable, "-c", ONE_HAND_OFF, "bench", "--seconds", "10ms", "--leases", "1", "--json"]
    done = subprocess.run(words, env=shell.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hand_off"] == {"p50": 0.25, "p99": 0.25, "count": 1}


@pytest.mark.server
@pytest.mark.parametrize("kind", ["redis", "mongodb", "postgresql", "mariadb", "mysql"])
def test_doctor_on_a_server(shell: Shell, kind: str, request: pytest.FixtureRequest) -> None:
    """``leasehold doctor`` finds the doctor of each store."""
    url = request.getfixturevalue(f"{kind}_server").url
    told(shell, "init", url=url)
    found = told(shell, "doctor", url=url)
    assert "ok" in levels(found)
    assert all(finding["advice"] for finding in found if finding["level"] in ("warning", "error"))
    assert shell.do("run", "job", "--url", url, "--", "true").returncode == 0


@pytest.mark.server
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_init_creates_a_table_once(shell: Shell, kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(f"{kind}_server").url
    url = f"{url}{'&' if '?' in url else '?'}table=made_by_init"
    sql = shell.do("init", "--print-sql", "--url", url)
    assert sql.returncode == 0
    assert "CREATE TABLE" in sql.stdout
    assert "made_by_init" in sql.stdout
    assert levels(told(shell, "init", "--dry-run", url=url)) == {"to do"}
    assert levels(told(shell, "init", url=url)) == {"done"}
    assert levels(told(shell, "init", url=url)) == {"ok"}
    assert levels(told(shell, "init", "--dry-run", url=url)) == {"ok"}


@pytest.mark.server
def test_init_from_legacy(shell: Shell, mongodb_server: Any) -> None:
    """Refused while the old code holds a lock; afterwards the expired records are removed."""
    url = mongodb_server.url
    client: pymongo.MongoClient[Any] = pymongo.MongoClient(url)
    database = client.get_default_database("test")
    old = database["system_locks"]
    by_name = ("init", "--from-legacy", "--legacy-collection")
    url = url if "/" in url.partition("://")[2] else f"{url}/test"
    try:
        now = client.admin.command("hello")["localTime"]
        old.insert_one({"lockName": "init", "instanceId": "host-1", "expiresAt": now + timedelta(days=365)})
        found = told(shell, "init", "--from-legacy", url=url, code=1)
        assert "held by host-1" in found[-1]["message"]
        old.update_many({}, {"$set": {"expiresAt": now - timedelta(days=365)}})
        assert "to do" in levels(told(shell, "init", "--from-legacy", "--dry-run", url=url))
        assert old.count_documents({}) == 1
        told(shell, "init", "--from-legacy", url=url)
        assert old.count_documents({}) == 0
        assert "no collection nosuch" in told(shell, *by_name, "nosuch", url=url)[0]["message"]
        assert shell.do("init", "--legacy-collection", "x", "--url", url).returncode == 2
    finally:
        old.drop()
        client.close()


@pytest.mark.server
def test_init_makes_leases_of_a_lock_table(shell: Shell, mariadb_server: Any) -> None:
    url, words = mariadb_server.url, ("init", "--from-legacy", "--legacy-table", "own_locks", "--namespace", "own")
    connection = pymysql.connect(host="127.0.0.1", port=mariadb_server.port, user="root", database="leasehold")
    with connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE own_locks (action VARCHAR(99) UNIQUE, holder TEXT, expired_at TIMESTAMP NOT NULL)")
        try:
            cursor.execute("INSERT INTO own_locks VALUES ('nightly', 'host-1', NOW() + INTERVAL 1 HOUR)")
            connection.commit()
            assert levels(told(shell, *words, "--dry-run", url=url)) >= {"to do"}
            assert levels(told(shell, *words, url=url)) >= {"done"}
            assert "host-1" in shell.do("ls", "--namespace", "own", "--url", url).stdout
            assert shell.do("run", "nightly", "-n", "--namespace", "own", "--url", url, "--", "true").returncode == 75
            with pytest.raises(pymysql.err.IntegrityError, match="Duplicate entry: leasehold has taken over"):
                cursor.execute("INSERT INTO own_locks VALUES ('other', 'host-1', NOW() + INTERVAL 1 HOUR)")
        finally:
            cursor.execute("DROP TABLE own_locks")
