"""Text of a store cannot drive a terminal: nobody prints a control character of it raw."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import leasehold

EVIL = "\x1b[2J\x07evil\x9b"
OWNER = "01234567890"
"""As many bytes as EVIL has in UTF-8."""
CONTROL = {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))} - {"\n"}
STORES = ["sqlite", pytest.param("redis", marks=pytest.mark.server)]
HELD = (["ls"], ["show", "{}"], ["run", "{}", "--no-wait", "--", "true"], ["break", "{}"])
DONE = (["once", "{}", "--version", "1", "--", "true"],)
COMMANDS = {"owner": HELD, "data": HELD[:2], "result": DONE, "error": DONE}


def fail() -> None:
    raise ValueError(EVIL)


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store in which "owner", "data", "result" and "error" have an escape sequence in what their name says."""
    file = tmp_path / "leases.db"
    where = f"sqlite:///{file}" if request.param == "sqlite" else request.getfixturevalue("redis_server").url
    with leasehold.connect(where, owner=OWNER, ttl=100) as locks:
        locks.once("result", version="1").run(lambda: EVIL)
        assert not locks.once("error", version="1").run(fail, check=False).ok
        data = locks.lock("data", data={"by": EVIL}).acquire()
        lease = locks.lock("owner", renew=False).acquire()
        if request.param == "sqlite":
            write_owner_in_sqlite(file)
        else:
            write_owner_in_redis(where)
        yield where
        data.release()
        try:
            lease.release()
        except leasehold.StoreError:
            pass  # refused as damaged


def write_owner_in_sqlite(file: Path) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    in_json = "".join(f"\\u{ord(char):04x}" if char in CONTROL else char for char in EVIL)
    changed = connection.execute(
        "UPDATE leasehold SET state = replace(state, ?, ?) WHERE name = 'owner'", (OWNER, in_json)
    )
    assert changed.rowcount == 1
    connection.close()


def write_owner_in_redis(where: str) -> None:
    client: Any = redis.Redis.from_url(where)
    evil = EVIL.encode()
    changed = 0
    for key in client.keys("*owner*"):
        if client.type(key) == b"hash":
            for field, value in client.hgetall(key).items():
                if OWNER.encode() in value:
                    client.hset(key, field, value.replace(OWNER.encode(), evil))
                    changed += 1
    client.close()
    assert changed


@pytest.mark.parametrize("name", ["owner", "data", "result", "error"])
def test_no_command_prints_a_control_character_of_the_store(url: str, name: str) -> None:
    for words in COMMANDS[name]:
        line = [word.format(name) for word in words]
        at = line.index("--") if "--" in line else len(line)
        line[at:at] = ["--url", url]
        ran = subprocess.run([sys.executable, "-m", "leasehold", *line], capture_output=True, timeout=30, check=False)
        said = (ran.stdout + ran.stderr).decode()
        assert not CONTROL & {*said}, (line, said)
        assert ran.returncode in (0, 1, 70, 74, 75, 78), (line, said)
        assert "Traceback" not in said, (line, said)


def test_errors_and_log_lines_have_no_control_character_of_the_store(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = []
    with caplog.at_level(logging.INFO, "leasehold"), leasehold.connect(url) as locks:
        list(locks.leases())
        for name in ("owner", "data", "result", "error"):
            for call in (locks.lock(name).try_acquire, locks.lock(name, timeout=0).acquire):
                try:
                    call()
                except leasehold.LeaseholdError as error:
                    said.append(str(error))
    assert said
    assert not CONTROL & {*caplog.text, *"\n".join(said)}, (said, caplog.text)
