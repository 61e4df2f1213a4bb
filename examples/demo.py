"""What leasehold does, in four scenes and a few seconds. Several processes, the embedded store, nothing else.

python examples/demo.py
"""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing

import leasehold


def add(path: str, name: str, times: int) -> None:
    """Add 1 to the number in a file, so many times: read, think, write. Under a lease, unless ``name`` is empty."""
    locks = leasehold.connect()
    for _ in range(times):
        lease = locks.lock(name).acquire() if name else None
        with open(path) as file:
            number = int(file.read() or 0)
        time.sleep(0.001)
        mine = f"{path}-{os.getpid()}"
        with open(mine, "w") as file:
            file.write(str(number + 1))
        os.replace(mine, path)  # whole: who reads meanwhile sees the one or the other
        if lease:
            lease.release()


def hold(name: str, ttl: float) -> None:
    """Take the lease, say so, and sit on it."""
    lease = leasehold.connect().lock(name, ttl=ttl).acquire()
    print(lease.token, flush=True)
    time.sleep(60)


def write_late(path: str, name: str) -> None:
    """Take the lease, be paused by the parent for longer than the lease lasts, then try to write all the same."""
    lease = leasehold.connect().lock(name, ttl=0.5).acquire()
    print(lease.token, flush=True)
    sys.stdin.readline()
    written = fenced_write(path, lease.token, "from A")
    print(f"A wakes up. lease.valid is {lease.valid}; its write {'went through!' if written else 'was refused.'}")


def fenced_write(path: str, token: int, text: str) -> bool:
    """A resource that refuses a token older than one it has seen, in the same statement as the write."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE IF NOT EXISTS page (id INTEGER PRIMARY KEY, text, token DEFAULT 0)")
        database.execute("INSERT OR IGNORE INTO page (id) VALUES (1)")
        change = "UPDATE page SET text = ?, token = ? WHERE id = 1 AND token <= ?"
        return database.execute(change, (text, token, token)).rowcount == 1


def start(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def scene_counter(folder: str, name: str) -> None:
    for title, under in (("without a lease", ""), ("with one", name)):
        path = os.path.join(folder, title.replace(" ", "-"))
        open(path, "w").close()
        workers = [start("add", path, under, 25) for _ in range(4)]
        for worker in workers:
            worker.communicate()
        with open(path) as file:
            print(f"1. 4 processes add 1 to a number 25 times each, {title}: {file.read()}")


def scene_killed(locks: leasehold.Locks, name: str) -> None:
    holder = start("hold", name, 30)
    assert holder.stdout is not None
    token = int(holder.stdout.readline())
    print(f"2. A process holds the lease for 30 s (token {token}). We kill it with -9 and ask for it.")
    holder.kill()
    killed = time.monotonic()
    with locks.lock(name, timeout=35) as lease:
        print(f"   Ours after {(time.monotonic() - killed) * 1000:.0f} ms, token {lease.token}.")
    holder.communicate()


def pause(process: "subprocess.Popen[str]", aside: leasehold.Lock) -> None:
    """Stop it; not in the middle of a write to the embedded store, with which it would hold up everybody."""
    process.send_signal(signal.SIGSTOP)
    while not (lease := aside.try_acquire()):
        process.send_signal(signal.SIGCONT)
        time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
    lease.release()


def scene_paused(locks: leasehold.Locks, folder: str, name: str) -> None:
    path = os.path.join(folder, "page.db")
    paused = start("write_late", path, name)
    assert paused.stdout is not None
    token = int(paused.stdout.readline())
    pause(paused, locks.lock(f"{name}-aside", on_unavailable="skip"))
    print(f"3. A holds the lease (ttl 0.5 s, token {token}) and is paused: it can neither renew nor notice.")
    with locks.lock(name) as lease:
        fenced_write(path, lease.token, "from B")
        print(f"   B gets it when it has run out, token {lease.token}, and writes.")
    paused.send_signal(signal.SIGCONT)
    print("   " + paused.communicate("go on\n")[0].strip())


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    unique = f"demo-{os.getpid()}-{time.time_ns()}"
    with tempfile.TemporaryDirectory() as folder, leasehold.connect() as locks:
        scene_counter(folder, unique)
        scene_killed(locks, unique)
        scene_paused(locks, folder, unique)
        held = locks.lock(unique).acquire()
        try:
            locks.lock(unique, timeout=1).acquire()
        except leasehold.AcquireTimeout as error:
            print(f"4. Who has it? AcquireTimeout: {error}")
        held.release()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["add", path, name, times]:
            add(path, name, int(times))
        case ["hold", name, ttl]:
            hold(name, float(ttl))
        case ["write_late", path, name]:
            write_late(path, name)
        case _:
            main()
