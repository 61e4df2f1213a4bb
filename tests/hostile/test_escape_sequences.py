"""Text of a store cannot drive a terminal: control characters are shown escaped."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasehold

EVIL, SHOWN = "\x1b[2J\x07evil", "\\x1b[2J\\x07evil"
IN_JSON = "\\u001b[2J\\u0007evil"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A database in which somebody has written an owner with an escape sequence."""
    file = tmp_path / "leases.db"
    with leasehold.connect(f"sqlite:///{file}", owner="0123456789", ttl=100) as locks:
        lease = locks.lock("job", renew=False).acquire()
        assert lease.valid
        with sqlite3.connect(file) as connection:
            connection.execute("UPDATE leasehold SET state = replace(state, '0123456789', ?)", (IN_JSON,))
        connection.close()
        yield f"sqlite:///{file}"


@pytest.mark.parametrize("words", [["ls"], ["show", "job"], ["stats"], ["break", "job"], ["run", "job", "--no-wait"]])
def test_command_shows_an_owner_with_its_escape_sequence_escaped(url: str, words: list[str]) -> None:
    tail = ["--", "true"] if words[0] == "run" else []
    ran = subprocess.run(
        [sys.executable, "-m", "leasehold", *words, "--url", url, *tail], capture_output=True, text=True, timeout=30
    )
    said = ran.stdout + ran.stderr
    assert "\x1b" not in said
    assert "\x07" not in said
    assert SHOWN in said


def test_errors_and_log_lines_have_the_escape_sequence_escaped(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "leasehold"), leasehold.connect(url) as locks:
        assert next(locks.leases()).owner == EVIL  # a program gets what is stored
        with pytest.raises(leasehold.AcquireTimeout) as caught:
            locks.lock("job").acquire(timeout=0)
    assert SHOWN in str(caught.value)
    assert SHOWN in caplog.text
    assert not {"\x1b", "\x07"} & {*str(caught.value), *caplog.text}
