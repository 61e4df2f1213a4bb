"""What other users of the machine can plant beside a SQLite file, and in its rows, and what leasehold makes of it."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasehold
from leasehold.admin import doctor

STRANGER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@pytest.fixture
def holder(path: Path) -> Iterator[leasehold.Locks]:
    with leasehold.connect(f"sqlite:///{path}", ttl=60) as locks:
        yield locks


@pytest.fixture
def other(path: Path) -> Iterator[leasehold.Locks]:
    with leasehold.connect(f"sqlite:///{path}", ttl=60) as locks:
        yield locks


def change_permit(path: Path, place: int, value: object) -> None:
    """Write a field of the holder's record, as anybody could who may write the file."""
    with sqlite3.connect(path, isolation_level=None, timeout=10) as connection:
        [(state,)] = connection.execute("SELECT state FROM leasehold WHERE name = 'job'").fetchall()
        shape, limit, [permit], queue = json.loads(state)
        permit[place] = value
        changed = json.dumps([shape, limit, [permit], queue])
        connection.execute("UPDATE leasehold SET state = ? WHERE name = 'job'", (changed,))
    connection.close()


ATTEMPT, SESSION = 0, 4


@pytest.mark.parametrize("where", ["absolute", "relative"])
def test_session_of_a_record_names_no_file(
    holder: leasehold.Locks, other: leasehold.Locks, path: Path, tmp_path: Path, where: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lease = holder.lock("job").acquire()
    change_permit(path, SESSION, str(victim) if where == "absolute" else "../victim")
    change_permit(path, ATTEMPT, "chosen text")
    for call in (lambda: other.break_lease("job"), lambda: other.lock("job").try_acquire()):
        try:
            call()
        except leasehold.StoreError:
            pass  # about this name: what counts is the file
    assert victim.read_text() == "precious", "SAFETY: a record chose a file, and text was written into it"
    assert lease.token


def test_symbolic_link_in_place_of_a_fifo_is_not_followed(
    holder: leasehold.Locks, other: leasehold.Locks, path: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lease = holder.lock("job").acquire()
    [fifo] = Path(f"{path}-wake").iterdir()
    fifo.unlink()
    fifo.symlink_to(victim)
    assert other.break_lease("job")
    assert victim.read_text() == "precious", "SAFETY: a symbolic link was followed and its target overwritten"
    assert lease.token


def test_regular_file_in_place_of_a_fifo_is_not_written(
    holder: leasehold.Locks, other: leasehold.Locks, path: Path
) -> None:
    lease = holder.lock("job").acquire()
    [fifo] = Path(f"{path}-wake").iterdir()
    fifo.unlink()
    fifo.write_text("precious")
    assert other.break_lease("job")
    assert fifo.read_text() == "precious", "SAFETY: a regular file was opened in place of a FIFO"
    assert lease.token


@as_root
@pytest.mark.parametrize("planted", ["folder", "fifo", "writable"])
def test_fifo_without_reader_that_a_stranger_planted_proves_no_death(
    holder: leasehold.Locks, other: leasehold.Locks, path: Path, planted: str
) -> None:
    folder = Path(f"{path}-wake")
    lease = holder.lock("job").acquire()
    [fifo] = folder.iterdir()
    fifo.unlink()
    os.mkfifo(fifo)
    if planted == "folder":
        os.chown(folder, STRANGER, STRANGER)
    elif planted == "fifo":
        os.chown(fifo, STRANGER, STRANGER)
    else:
        folder.chmod(0o777)
    taken = other.lock("job").try_acquire()
    assert taken is None or not lease.valid, "SAFETY: two holders, because of a FIFO that a stranger could plant"
    assert lease.release()


@as_root
@pytest.mark.parametrize("planted", ["of a stranger", "writable by all", "a link"])
def test_wake_folder_that_is_not_to_be_trusted_means_polling_and_one_warning(
    path: Path, tmp_path: Path, planted: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(f"{path}-wake")
    if planted == "a link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        if planted == "of a stranger":
            os.chown(folder, STRANGER, STRANGER)
        else:
            folder.chmod(0o777)
    with caplog.at_level(logging.WARNING, "leasehold"):
        with leasehold.connect(f"sqlite:///{path}", ttl=60) as locks:
            with locks.lock("job"):
                assert os.listdir(folder) == []
                assert locks.lock("job").try_acquire() is None
            with locks.lock("job"):
                pass
    warnings = [record.getMessage() for record in caplog.records if "-wake" in record.getMessage()]
    assert len(warnings) == 1, warnings
    assert "Waiters poll" in warnings[0]


@as_root
def test_doctor_reports_a_wake_folder_of_a_stranger(path: Path) -> None:
    url = f"sqlite:///{path}"
    with leasehold.connect(url) as locks:
        locks.lock("job").acquire().release()
    os.chown(f"{path}-wake", STRANGER, STRANGER)
    assert any(f"{path}-wake" in finding.message for finding in doctor(url) if finding.level != "ok")


def test_torn_message_in_a_fifo_loses_no_later_wake_up(
    holder: leasehold.Locks, other: leasehold.Locks, path: Path
) -> None:
    """Whoever may write the FIFO can write half a message into it."""
    lease = holder.lock("job").acquire()
    [fifo] = Path(f"{path}-wake").iterdir()
    fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    assert stat.S_ISFIFO(os.fstat(fd).st_mode)
    assert not lease.lost.wait(0.3)  # by now its listener waits
    os.write(fd, b"x")
    os.close(fd)
    assert other.break_lease("job")
    assert lease.lost.wait(5)  # the next renewal is 20 s away
