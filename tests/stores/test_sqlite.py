"""What is peculiar to the embedded store: its file, its clock, its doorbell."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold.core import timing
from leasehold.stores.sqlite.file import network_mount
from leasehold.testing.handles import eventually


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


@pytest.fixture
def locks(path: Path) -> Iterator[leasehold.Locks]:
    with leasehold.connect(f"sqlite:///{path}", ttl=30) as locks:
        yield locks


def sql(path: Path, statement: str, *args: object) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    try:
        return connection.execute(statement, args).fetchall()
    finally:
        connection.close()


def python(code: str, *args: object, **more: Any) -> subprocess.Popen[str]:
    """A child that runs ``code`` with ``args`` in sys.argv; it prints a line when it is ready."""
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)


# It says so when its keeper rests: stopped while that writes, it would hold up everybody.
HOLD = """
import sys, time, leasehold
locks = leasehold.connect("sqlite:///" + sys.argv[1], ttl=float(sys.argv[3]))
lease = locks.lock(sys.argv[2]).acquire()
while locks._core.soonest < float("inf"):
    time.sleep(0.001)
print(lease.token, flush=True)
sys.stdin.readline()
print(lease.valid, lease.lost.is_set(), lease.release(), flush=True)
"""


# The record.


def test_the_record_as_the_design_note_says(locks: leasehold.Locks, path: Path) -> None:
    with locks.lock("job", data={"by": "me"}) as lease:
        [(name, form, token, boot, state)] = sql(path, "SELECT name, format, token, boot, state FROM leasehold")
        assert (name, form, token) == ("job", 1, lease.token)
        assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        shape, limit, [holder], queue = json.loads(state)
        assert (shape, limit, queue) == ("lock", 1, [])
        assert holder[1] == locks.owner
        assert json.loads(holder[3]) == {"by": "me"}
    assert sql(path, "SELECT state FROM leasehold") == [("",)]


def test_a_newer_format_is_refused(locks: leasehold.Locks, path: Path) -> None:
    locks.lock("job").acquire().release()
    sql(path, "UPDATE leasehold SET format = 2")
    with pytest.raises(leasehold.StoreNotReady, match="upgrade"):
        locks.lock("job").acquire(20)
    locks.lock("other").acquire(20).release()


def test_a_dead_holder_of_another_boot_is_replaced_at_once(locks: leasehold.Locks, path: Path) -> None:  # promise 5
    holder = python(HOLD, path, "job", 3600)
    assert holder.stdout is not None
    token = int(holder.stdout.readline())
    holder.kill()
    holder.communicate()
    sql(path, "UPDATE leasehold SET boot = 'an earlier one'")
    assert locks.inspect("job") is None
    assert [info.name for info in locks.leases()] == []
    other = locks.lock("job").try_acquire()
    assert other is not None
    assert other.token > token
    assert other.release()


def test_the_wall_clock_takes_no_part(path: Path) -> None:  # promise 1
    """An hour forth or back, in the holder or the waiter, changes nothing but the tokens' distance."""
    child = """
import sys, time
offset = float(sys.argv[2])
real = time.time_ns
time.time_ns = lambda: real() + int(offset * 1e9)
import leasehold
with leasehold.connect("sqlite:///" + sys.argv[1], ttl=30) as locks:
    lease = locks.lock("job").try_acquire()
    print(None if lease is None else lease.token, flush=True)
    if lease: lease.release()
"""
    tokens = [int(python(child, path, offset).communicate()[0]) for offset in (0, 3600, -3600, 0)]
    assert tokens == sorted(set(tokens))
    with leasehold.connect(f"sqlite:///{path}", ttl=60) as locks, locks.lock("job"):
        for offset in (-3600, 3600):
            assert python(child, path, offset).communicate()[0].strip() == "None"


# Tokens.


def test_tokens_rise_over_everything(path: Path) -> None:  # promise 2
    url = f"sqlite:///{path}"
    tokens: list[int] = []
    with leasehold.connect(url, ttl=30) as locks:
        for _ in range(1000):
            with locks.lock("job") as lease:
                tokens.append(lease.token)
        broken = locks.lock("job").acquire()
        assert locks.break_lease("job", force=True)
        kept = locks.lock("job", ttl=0.2, renew=False).acquire()
        later = locks.lock("job").acquire()  # after the last one's 0.2 s
        tokens += [broken.token, kept.token, later.token]
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    with leasehold.connect(url) as locks, locks.lock("job") as lease:
        tokens.append(lease.token)
    assert all(a < b for a, b in itertools.pairwise(tokens))


def test_a_purge_forgets_the_name_but_not_the_token(locks: leasehold.Locks, path: Path) -> None:  # S5
    far = 1 << 60  # a token that no clock will reach: only the record can keep it
    locks.lock("old").acquire().release()
    locks.lock("young").acquire().release()
    sql(path, "UPDATE leasehold SET token = ?, updated = 0 WHERE name = 'old'", far)
    sql(path, "DELETE FROM leasehold_meta WHERE key = 'tidied'")
    core = locks._core
    core.driver.run(core.store.tidy(), 20)
    assert sql(path, "SELECT name FROM leasehold") == [("young",)]
    with locks.lock("old") as lease:
        assert lease.token == far + 1


def test_a_purge_spares_what_is_held_and_runs_once_an_hour(locks: leasehold.Locks, path: Path) -> None:
    with locks.lock("held"):
        locks.lock("idle").acquire().release()
        sql(path, "UPDATE leasehold SET updated = 0")
        core = locks._core
        core.driver.run(core.store.tidy(), 20)  # the keeper has done it less than an hour ago, or this one does it
        core.driver.run(core.store.tidy(), 20)
        sql(path, "UPDATE leasehold_meta SET value = 1 WHERE key = 'tidied'")
        core.driver.run(core.store.tidy(), 20)
        assert sql(path, "SELECT name FROM leasehold") == [("held",)]


def test_a_deleted_file_is_noticed_and_made_anew(locks: leasehold.Locks, path: Path) -> None:
    """Two processes must not go on with two files: whoever held in the old one learns that it is lost."""
    lease = locks.lock("job", renew_every=0.1).acquire()
    path.unlink()
    assert lease.lost.wait(20)
    with locks.lock("job") as other:
        assert other.token > lease.token
        assert sql(path, "SELECT token FROM leasehold") == [(other.token,)]


# The file.


def test_the_default_is_a_file_in_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEASEHOLD_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with leasehold.connect() as locks:
        assert not (tmp_path / "state").exists()  # connect does no I/O
        with locks.lock("job"):
            folder = tmp_path / "state" / "leasehold"
            assert (folder / "leases.db").exists()
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setenv("LEASEHOLD_URL", f"sqlite:///{tmp_path}/other.db")
    with leasehold.connect() as locks, locks.lock("job"):
        assert (tmp_path / "other.db").exists()


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    locks = leasehold.connect("sqlite:///rel%20ative.db")
    monkeypatch.chdir("/")
    with locks, locks.lock("job"):
        assert (tmp_path / "rel ative.db").exists()


def test_not_a_database(path: Path) -> None:
    path.write_bytes(b"this is no database, but long enough to be looked at as one " * 20)
    before = path.read_bytes()
    with leasehold.connect(f"sqlite:///{path}") as locks:
        with pytest.raises(leasehold.StoreNotReady, match="move the file away"):
            locks.lock("job").acquire(20)
    assert path.read_bytes() == before


def test_damaged_in_the_middle(locks: leasehold.Locks, path: Path) -> None:
    locks.lock("job").acquire().release()
    locks.close()
    whole = bytearray(path.read_bytes())
    whole[100:] = b"\xff" * (len(whole) - 100)
    path.write_bytes(whole)
    with leasehold.connect(f"sqlite:///{path}") as again, pytest.raises(leasehold.StoreNotReady, match="damaged"):
        again.lock("job").acquire(20)


def test_a_directory_a_missing_folder_another_table(tmp_path: Path) -> None:
    sql(tmp_path / "other.db", "CREATE TABLE leasehold (something TEXT)")
    for url, says in [
        (f"sqlite:///{tmp_path}", "is a directory"),
        (f"sqlite:///{tmp_path}/no/where.db", r"folder .*/no does not exist; create it first"),
        (f"sqlite:///{tmp_path}/other.db", "of another program"),
    ]:
        with leasehold.connect(url) as locks:
            for _ in range(2):
                with pytest.raises(leasehold.StoreNotReady, match=says):
                    locks.lock("job").acquire(20)
    assert not (tmp_path / "no").exists()


READ_ONLY = """
import os, sys, leasehold
def take(path):
    with leasehold.connect("sqlite:///" + path) as locks:
        locks.lock("job").acquire(20).release()
take(sys.argv[2])  # imports everything
if os.getuid() == 0:  # root may write everywhere: become nobody
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    take(sys.argv[1])
except leasehold.StoreNotReady as error:
    print(error)
"""


@pytest.mark.parametrize(("folder", "file"), [(0o555, 0o444), (0o777, 0o444)])
def test_read_only(folder: int, file: int) -> None:
    # Not in tmp_path: any other run of pytest that begins meanwhile closes what is above that to other users.
    with tempfile.TemporaryDirectory(prefix="leasehold-") as top:
        path = Path(top, "folder", "leases.db")
        path.parent.mkdir()
        with leasehold.connect(f"sqlite:///{path}") as locks:
            locks.lock("job").acquire().release()
        for each in path.parent.parents:
            if each.stat().st_uid == os.getuid() and not each.stat().st_mode & 0o001:
                each.chmod(0o755)
        path.chmod(file)
        path.parent.chmod(folder)
        try:
            assert "this user" in python(READ_ONLY, path, Path(top, "other.db")).communicate()[0]
        finally:
            path.parent.chmod(0o755)


def test_a_full_disk_is_told_and_nothing_is_held(locks: leasehold.Locks, path: Path) -> None:
    lease = locks.lock("small", ttl=120).acquire()
    eventually(lambda: locks._core.soonest == float("inf"))  # its keeper is not in the middle of something
    connection = locks._core.driver.database._main.connection  # type: ignore[attr-defined]
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")  # the same error as a disk without room

    def fill() -> None:
        for number in range(2000):
            locks.lock(f"{number}" + "x" * 400, data="y" * 4000, ttl=120).try_acquire()

    with pytest.raises(leasehold.StoreUnavailable, match="full"):
        fill()
    connection.execute("PRAGMA max_page_count = 1000000")
    assert lease.release()


def test_a_writer_that_is_stuck_is_not_waited_for_for_ever(locks: leasehold.Locks, path: Path) -> None:
    lease = locks.lock("held", ttl=30).acquire()
    eventually(
        lambda: locks._core.soonest == float("inf")
    )  # its keeper has tidied up: else that would wait, and all others for it
    stuck = sqlite3.connect(path, isolation_level=None)
    stuck.execute("BEGIN IMMEDIATE")
    try:
        started = time.monotonic()
        with pytest.raises(leasehold.StoreUnavailable, match=r"write lock|other calls"):  # the keeper may be at it
            locks.lock("job").acquire(timeout=0.5)
        assert time.monotonic() - started < 10
        assert locks.inspect("held") is not None  # readers are not held up
        assert lease.valid
    finally:
        stuck.close()
    eventually(lambda: locks.lock("job").try_acquire())


@pytest.mark.parametrize(
    ("kind", "refused"), [("ext4", False), ("nfs4", True), ("cifs", True), ("9p", True), ("overlay", False)]
)
def test_network_file_systems_are_refused(kind: str, refused: bool) -> None:
    mounts = [
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw",
        f"30 22 0:30 / /mnt/with\\040space rw,relatime shared:9 master:2 - {kind} server:/x rw",
        "31 22 0:31 / /mnt/with rw - nfs4 server:/y rw",
    ]
    assert network_mount("/mnt/with space/sub", mounts) == ((kind, "/mnt/with space") if refused else None)
    assert network_mount("/mnt/within", mounts) is None


def test_the_doorbell_has_the_rights_of_the_file(locks: leasehold.Locks, path: Path) -> None:
    sql(path, "VACUUM")
    path.chmod(0o660)
    with locks.lock("job"):
        folder = Path(f"{path}-wake")
        [fifo] = folder.iterdir()
        assert stat.S_ISFIFO(fifo.stat().st_mode)
        assert stat.S_IMODE(fifo.stat().st_mode) == 0o660
        assert stat.S_IMODE(folder.stat().st_mode) == 0o770
    locks.close()
    assert list(folder.iterdir()) == []


# Other processes.


def test_a_killed_holder_is_replaced_at_once(
    locks: leasehold.Locks, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # promise 5
    """The kernel tells its death: nobody waits for a ttl of an hour, nor until he looks by himself."""
    monkeypatch.setattr(timing, "FALLBACK", 1000.0)
    holder = python(HOLD, path, "job", 3600)
    assert holder.stdout is not None
    token = int(holder.stdout.readline())
    got: list[leasehold.Lease] = []
    waiter = threading.Thread(target=lambda: got.append(locks.lock("job").acquire()))
    waiter.start()
    eventually(lambda: (info := locks.inspect("job")) and info.waiters == 1)
    holder.kill()
    waiter.join(30)
    assert got, "the waiter was not told"
    assert got[0].token > token
    got[0].release()
    holder.communicate()


def test_a_killed_holder_is_noticed_by_one_who_only_tries(locks: leasehold.Locks, path: Path) -> None:
    holder = python(HOLD, path, "job", 3600)
    assert holder.stdout is not None
    holder.stdout.readline()
    assert locks.lock("job").try_acquire() is None
    holder.kill()
    holder.communicate()
    lease = locks.lock("job").try_acquire()
    assert lease is not None
    lease.release()


def test_a_holder_with_a_removed_doorbell_counts_as_alive(locks: leasehold.Locks, path: Path) -> None:
    holder = python(HOLD, path, "job", 3600)
    assert holder.stdout is not None
    holder.stdout.readline()
    for fifo in Path(f"{path}-wake").iterdir():
        fifo.unlink()
    assert locks.lock("job").try_acquire(0.3) is None
    assert holder.communicate("\n")[0].split() == ["True", "False", "True"]
    assert locks.lock("job").acquire(60).release()  # not rung: found by the fallback


FORKING = """
import os, sys, time, leasehold
locks = leasehold.connect("sqlite:///" + sys.argv[1], ttl=3600)
lease = locks.lock("job").acquire()
if os.fork() == 0:
    os.write(1, f"child {lease.valid} {lease.release()}\\n".encode())  # one write each: they must not mix
    sys.stdin.readline()
    os._exit(0)
os.write(1, b"parent\\n")
time.sleep(100)
"""


def test_a_child_does_not_keep_the_parents_session_alive(locks: leasehold.Locks, path: Path) -> None:
    holder = python(FORKING, path)
    assert holder.stdout is not None
    lines = sorted(holder.stdout.readline().strip() for _ in range(2))
    assert lines == ["child False False", "parent"]
    assert locks.lock("job").try_acquire() is None
    holder.kill()
    holder.wait()
    lease = locks.lock("job").acquire(30)  # though the child lives on
    lease.release()
    holder.communicate()


def test_a_stopped_holder(locks: leasehold.Locks, path: Path) -> None:  # promises 1, 2, 3, 6
    """SIGSTOP past its ttl: another gets it; on SIGCONT the first knows, and does no harm."""
    holder = python(HOLD, path, "job", 1)
    assert holder.stdout is not None
    token = int(holder.stdout.readline())
    holder.send_signal(signal.SIGSTOP)
    while writes(path):  # its keeper, just now: it would hold up everybody
        holder.send_signal(signal.SIGCONT)
        time.sleep(0.02)
        holder.send_signal(signal.SIGSTOP)
    with locks.lock("job", timeout=60) as lease:
        assert lease.token > token
        holder.send_signal(signal.SIGCONT)
        assert holder.communicate("\n")[0].split() == ["False", "True", "False"]
        info = locks.inspect("job")
        assert info is not None
        assert info.token == lease.token
        lease.check()


def writes(path: Path) -> bool:
    """Whether somebody has the write lock, and keeps it."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0.3)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return True
    else:
        return False
    finally:
        connection.close()


COUNT = """
import sys, time, leasehold
path, counter, rounds, locked = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "locked"
import contextlib
with leasehold.connect("sqlite:///" + path) as locks:
    lock = locks.lock("counter")
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(rounds):
        with lock if locked else contextlib.nullcontext():
            with open(counter) as file:
                value = int(file.read() or 0)
            if not locked:
                time.sleep(0.001)  # however few cores there are, another comes in between
            with open(counter, "w") as file:
                file.write(str(value + 1))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("locked", ["locked", "unlocked"])
def test_eight_processes_count(path: Path, tmp_path: Path, locked: str) -> None:
    """8 × 500 increments are exact; without the lock (the control) some are lost."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    children = [python(COUNT, path, counter, 500, locked, stderr=subprocess.DEVNULL) for _ in range(8)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    codes = [child.wait() for child in children]
    for child in children:
        child.communicate()
    if locked == "locked":
        assert codes == [0] * 8
        assert int(counter.read_text()) == 4000
    else:
        assert any(codes) or int(counter.read_text() or 0) < 4000


WAIT = """
import resource, sys, leasehold
with leasehold.connect("sqlite:///" + sys.argv[1]) as locks:
    assert locks.lock("job").try_acquire(0.5) is None  # what is imported for that is no part of it
    print("ready", flush=True)
    before = resource.getrusage(resource.RUSAGE_SELF)
    assert locks.lock("job").try_acquire(float(sys.argv[2])) is None
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""


@pytest.mark.slow
def test_waiting_costs_next_to_nothing(locks: leasehold.Locks, path: Path) -> None:
    """A process that waits uses under 1 % of a core: it sleeps until it is told."""
    with locks.lock("job"):
        waiter = python(WAIT, path, 12)
        spent = float(waiter.communicate()[0].split()[1])
    assert spent < 0.12


def test_a_file_of_the_first_tables_is_used_on(path: Path) -> None:
    """They had no notes; what is held in them stays held. Several processes may be the first to need one."""
    with leasehold.connect(f"sqlite:///{path}") as locks:
        token = locks.lock("old", renew=False).acquire().token
        database = sqlite3.connect(path)
        database.execute("ALTER TABLE leasehold DROP COLUMN note")
        database.close()
        script = f"import leasehold; print(leasehold.connect('sqlite:///{path}').once('x', version=1).run(int).version)"
        many = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(4)]
        assert [each.communicate()[0] for each in many] == [b"1\n"] * 4
    with leasehold.connect(f"sqlite:///{path}") as locks:
        assert locks.lock("old").acquire(timeout=20).token > token
