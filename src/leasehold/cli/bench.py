"""``leasehold bench``: measures leases on the user's own store, with real processes that it starts."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from .. import aio, connect
from ..stores.urls import ENVIRONMENT, given_or_default
from .look import Answer, as_json
from .options import Options, UsageError
from .passwords import print_error
from .store import checked, no_namespace
from .table import screen, table, wrapped

NAMESPACE = "leasehold-bench"
HOLD = 0.005
"""How long a lease is held when hand-offs are measured: long enough that the other process waits again."""
TTL = 3.0
"""The ttl of the leases that are held for long, and of the holder that is killed."""


class Sample(NamedTuple):
    """One holding by one of several processes. Times are on the machine's monotonic clock."""

    token: int
    acquired: float
    released: float
    who: int


def bench(options: Options) -> Answer:
    no_namespace(options, "it uses a namespace of its own and disturbs nobody")
    url = given_or_default(options.url)
    assert isinstance(url, str)
    if url.startswith("memory:"):
        raise UsageError("memory:// exists only inside one process: other processes cannot contend for it")
    checked(connect, url, namespace=NAMESPACE).close()
    logging.getLogger("leasehold").setLevel(logging.ERROR)  # a warning is expected: bench kills a holder
    name = f"bench-{secrets.token_hex(4)}"
    threads = pairs(url, name, options.seconds)
    tasks = asyncio.run(task_pairs(url, name, options.seconds))
    handed = hand_offs(contend(url, name, 2, HOLD, options.seconds))
    crowd = contend(url, name, options.processes, 0.0, options.seconds)
    share, lost = held(url, name, options.leases, options.seconds)
    figures = {
        "pair_threads": _percentiles(threads),
        "pair_asyncio": _percentiles(tasks),
        "hand_off": _percentiles(handed),
        "contended": {
            "processes": options.processes,
            "per_second": len(crowd)
            / (max(sample.released for sample in crowd) - min(sample.acquired for sample in crowd)),
            "fairness": fairness(crowd, options.processes),
        },
        "held": {"leases": options.leases, "ttl": TTL, "share_of_a_core": share, "lost": lost},
        "takeover": {"ttl": TTL, "seconds": takeover(url, name)},
    }
    return (as_json(figures), 0) if options.json else (_shown(figures), 0)


def pairs(url: str, name: str, seconds: float) -> list[float]:
    """How long each uncontended acquire and release took."""
    with connect(url, namespace=NAMESPACE) as locks:
        lock = locks.lock(name)
        lock.acquire().release()  # creates connections, scripts and tables before the measurement
        took: list[float] = []
        ends = time.monotonic() + seconds
        while (began := time.monotonic()) < ends or len(took) < 2:
            lock.acquire().release()
            took.append(time.monotonic() - began)
    return took


async def task_pairs(url: str, name: str, seconds: float) -> list[float]:
    async with aio.connect(url, namespace=NAMESPACE) as locks:
        lock = locks.lock(name)
        await (await lock.acquire()).release()
        took: list[float] = []
        ends = time.monotonic() + seconds
        while (began := time.monotonic()) < ends or len(took) < 2:
            await (await lock.acquire()).release()
            took.append(time.monotonic() - began)
    return took


def held(url: str, name: str, count: int, seconds: float) -> tuple[float, int]:
    """The share of a core that holding ``count`` leases takes, and how many of them were lost."""
    with connect(url, namespace=NAMESPACE, ttl=TTL) as locks:
        leases = [locks.lock(f"{name}-{number}").acquire() for number in range(count)]
        began, worked = time.monotonic(), time.process_time()
        time.sleep(max(seconds, TTL * 2 / 3))  # long enough that each is renewed
        worked, passed = time.process_time() - worked, time.monotonic() - began
        lost = sum(not lease.valid for lease in leases)
        for lease in leases:
            lease.release()
    return worked / passed, lost


def takeover(url: str, name: str) -> float:
    """Seconds from the kill −9 of a holder until ``acquire`` returns in a waiter."""
    taken: list[float] = []
    with connect(url, namespace=NAMESPACE) as locks:

        def wait() -> None:
            with locks.lock(name).acquire(timeout=60):
                taken.append(time.monotonic())

        holder = _start(url, name)
        waiter = threading.Thread(target=wait)
        try:
            _ready(holder)
            waiter.start()
            while not taken and ((found := locks.inspect(name)) is None or not found.waiters):
                time.sleep(0.01)
        finally:
            killed = time.monotonic()  # read before the kill: the waiter may be faster than this thread
            holder.kill()
            holder.communicate()
        waiter.join()
    # On a machine that stood still for longer than the ttl, the lease was lost before the kill: measure again.
    return taken[0] - killed if taken[0] > killed else takeover(url, name)


def _start(url: str, *arguments: object) -> subprocess.Popen[str]:
    # The URL may contain a password, so it must not appear in the process list.
    line = [sys.executable, "-m", "leasehold.cli.bench", *map(str, arguments)]
    environment = {**os.environ, ENVIRONMENT: url}
    return subprocess.Popen(line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError(f"a process of the benchmark failed with exit status {process.wait()}")


def contend(url: str, name: str, processes: int, hold: float, seconds: float) -> list[Sample]:
    """Start processes that contend for one name at the same time. Returns their holdings, in the order of tokens."""
    started: list[subprocess.Popen[str]] = []
    found = []
    try:
        started.extend(_start(url, name, hold, seconds) for _ in range(processes))
        for process in started:
            _ready(process)
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for who, process in enumerate(started):
            output, _ = process.communicate()
            if process.returncode:
                raise RuntimeError(f"a process of the benchmark failed with exit status {process.returncode}")
            found += [Sample(token, acquired, released, who) for token, acquired, released in json.loads(output)]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return sorted(found)


def contender(name: str, hold: float, seconds: float) -> list[tuple[int, float, float]]:
    """One of the processes: returns token, start and end of each of its holdings."""
    seen: list[tuple[int, float, float]] = []
    with connect(namespace=NAMESPACE) as locks:
        locks.inspect(name)
        print("ready", flush=True)
        sys.stdin.readline()
        lock, ends = locks.lock(name), time.monotonic() + seconds
        while time.monotonic() < ends or not seen:
            lease = lock.acquire()
            acquired = time.monotonic()
            if hold:
                time.sleep(hold)
            released = time.monotonic()
            lease.release()
            seen.append((lease.token, acquired, released))
    return seen


def hold_until_killed(name: str) -> None:
    """The process that is killed: acquires the name and holds it."""
    with connect(namespace=NAMESPACE, ttl=TTL) as locks, locks.lock(name):
        print("ready", flush=True)
        sys.stdin.readline()


def hand_offs(samples: Sequence[Sample]) -> list[float]:
    """Seconds from the call of ``release`` in one process to the return of ``acquire`` in another."""
    return [after.acquired - before.released for before, after in pairwise(samples) if after.who != before.who]


def fairness(samples: Sequence[Sample], processes: int) -> float:
    """Jain's index: 1 when all processes had the same share, 1/n when one of them had everything."""
    shares = [sum(sample.who == who for sample in samples) for who in range(processes)]
    return sum(shares) ** 2 / (processes * sum(share**2 for share in shares))


def _percentiles(took: Sequence[float]) -> dict[str, float]:
    """P50 and P99 in seconds, and the number of samples."""
    # There may be only one sample: on a busy machine two processes may have had all their samples one after the other.
    cuts = statistics.quantiles(took, n=100, method="inclusive") if len(took) > 1 else [*took] * 99
    return {"p50": cuts[49], "p99": cuts[98], "count": len(took)}


def _shown(figures: dict[str, dict[str, float]]) -> str:
    rows = [("", "P50", "P99", "COUNT")]
    for key, what in (
        ("pair_threads", "acquire and release, threads"),
        ("pair_asyncio", "acquire and release, asyncio"),
        ("hand_off", "hand-off between two processes"),
    ):
        found = figures[key]
        rows.append((what, _short(found["p50"]), _short(found["p99"]), f"{found['count']:.0f}"))
    crowd = figures["contended"]
    rate = f"{crowd['per_second']:.0f} hand-offs per second, fairness {crowd['fairness']:.3f} of 1"
    kept, over = figures["held"], figures["takeover"]
    share = f"{kept['share_of_a_core']:.1%} of a core, {kept['lost']} lost"
    lines = (
        f"{crowd['processes']:.0f} processes contending for one name: {rate}",
        f"{kept['leases']:.0f} leases held (ttl {kept['ttl']:.0f} s): {share}",
        f"holder killed with −9 (ttl {over['ttl']:.0f} s): replaced after {_short(over['seconds'])}",
    )
    on = screen()
    return table(rows, on=on) + "".join(f"{piece}\n" for line in lines for piece in wrapped(line, on, 0))


def _short(seconds: float) -> str:
    scale, unit = (1e6, "µs") if seconds < 0.001 else (1e3, "ms") if seconds < 1 else (1, "s")
    return f"{seconds * scale:.3g} {unit}"


def main(arguments: Sequence[str]) -> int:
    """One of the processes that ``bench`` starts."""
    try:
        if len(arguments) == 1:
            hold_until_killed(arguments[0])
        else:
            name, hold, seconds = arguments
            json.dump(contender(name, float(hold), float(seconds)), sys.stdout)
    except Exception as error:
        print_error(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
