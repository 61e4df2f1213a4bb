"""A service that a test starts, and the successor that waits for its leases."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import leasehold
import leasehold.core.timing
import leasehold.runtime.signals

from .work import NAMES

HERE = Path(__file__).parent
LIMIT = 60.0
ON_ITS_OWN = ("etcd:", "zookeeper:")
"""Where who waits takes the lease when it hears that it was given back. Elsewhere that very step makes it theirs."""
ROUNDING = 0.005
"""Of what a store says of times."""
LONG = 25.0
"""Work that is to be cut must not have ended before that, however late it is done."""
BUSY = "taken"


class Service:
    """A process that was started by a test, and the successor that waits for its leases.

    They are not to run out meanwhile (work.TTL), and the successor does not look whether they have (see ``no_looks``):
    what it gets, it gets because it was given back, and at once."""

    def __init__(self, url: str, grace: float, namespace: str = "") -> None:
        self.url = url
        self.grace = grace
        self.locks = leasehold.connect(self.url, namespace=namespace)
        self.busy = self.locks.lock(BUSY).acquire()
        self.environ = {
            **os.environ,
            "SERVICE_URL": self.url,
            "SERVICE_GRACE": str(grace),
            "SERVICE_NAMESPACE": namespace,
            "SERVICE_SECONDS": str(LONG if grace < 2 else 2),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "kinds"), os.environ.get("PYTHONPATH", "")]),
            "PYTHONUNBUFFERED": "1",
        }
        self.process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []
        self.errors: list[str] = []
        self.told: list[leasehold.Event] = []
        self.locks.on_event(self.told.append)
        self.taken: dict[str, float] = {}
        """When it was granted, by the store's clock, at the earliest."""
        self.ended_at = float("inf")
        self.threads: list[threading.Thread] = []

    def start(self, *words: str) -> None:
        self.process = subprocess.Popen(
            words,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=HERE,
        )
        for pipe, lines in ((self.process.stdout, self.lines), (self.process.stderr, self.errors)):
            self._aside(self._read, pipe, lines)
        self.until(lambda: sum(line.startswith("holds") for line in self.lines) == len(NAMES))
        self.until(lambda: self.waiters(BUSY) == 1)
        for name in NAMES:
            self._aside(self._succeed, name)
        self.until(lambda: all(self.waiters(name) == 1 for name in NAMES))

    def _aside(self, function: object, *args: object) -> None:
        thread = threading.Thread(target=function, args=args, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self.threads.append(thread)

    def _read(self, pipe: Iterator[str], lines: list[str]) -> None:
        lines.extend(iter(pipe))

    def _succeed(self, name: str) -> None:
        with self.locks.lock(name, on_lost="log") as lease:  # `killed` may break it
            asked = time.monotonic()
            held = self.locks.inspect(name)
            if held is not None and held.token == lease.token:
                self.taken[name] = asked - (datetime.now(UTC) - held.acquired).total_seconds()

    def waiters(self, name: str) -> int:
        held = self.locks.inspect(name)
        return (held.waiters or 0) if held else 0

    def until(self, true: object, ended: bool = False) -> None:
        ends = time.monotonic() + LIMIT
        while not true():  # type: ignore[operator]
            assert time.monotonic() < ends, (self.lines, self.errors)
            assert ended or self.process is None or self.process.poll() is None, (self.lines, self.errors)
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def signal_again(self, number: int) -> None:
        """So late that it is not taken for the same one."""
        time.sleep(leasehold.runtime.signals.TOGETHER + 0.1)
        self.signal(number)

    def ended(self) -> int:
        assert self.process is not None
        code = self.process.wait(LIMIT)
        self.ended_at = time.monotonic()
        for thread in self.threads:
            thread.join(LIMIT)
        return code

    def killed(self) -> int:
        """As ``ended``, but nobody has given its leases back: who waits for them would wait for their ttl."""
        assert self.process is not None
        code = self.process.wait(LIMIT)
        for name in NAMES:
            self.locks.break_lease(name, force=True)
        return code

    def gains(self) -> list[leasehold.Event]:
        """What the successor was told of how it got each lease."""
        return [each for each in self.told if each.name in NAMES and each.type in ("acquired", "taken_over")]

    def check_handed_on(self) -> None:
        """The successor had each lease at once: it was given back, not taken from one that had died or let it run out;
        and where the store can, by the same step, so before its holder had even heard that it was given back."""
        assert sorted(self.taken) == sorted(NAMES), (self.lines, self.errors)
        self.until(lambda: len(self.gains()) == len(NAMES), ended=True)
        assert {each.type for each in self.gains()} == {"acquired"}
        if not self.url.startswith(ON_ITS_OWN):
            given = {name: float(when) for name, when in (line.split()[1:3] for line in self.lines if "done " in line)}
            for name, granted in self.taken.items():
                assert granted <= given.get(name, self.ended_at) + ROUNDING, (self.taken, given, self.ended_at)

    def at_long_work(self) -> None:
        """To be said before its start."""
        self.environ["SERVICE_SECONDS"] = str(LONG)

    def said(self, word: str) -> list[str]:
        return sorted(line.split()[1] for line in self.lines if line.startswith(f"{word} "))

    def logged(self, text: str) -> bool:
        return any(text in line for line in self.errors)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for thread in self.threads:
                thread.join(LIMIT)
            for pipe in (self.process.stdout, self.process.stderr):
                assert pipe is not None
                pipe.close()
        self.locks.close()


def script(service: Service, side: str, how: str = "waits") -> None:
    file = "script.py" if side == "threads" else "script_aio.py"
    service.start(sys.executable, str(HERE / file), service.url, str(service.grace), how)


def all_done(service: Service) -> None:
    """Its work ended by itself, and the successor had each lease at once."""
    assert service.said("done") == sorted(NAMES), (service.lines, service.errors)
    assert not service.said("cut")
    assert "sent off\n" in service.lines
    service.check_handed_on()
    assert service.logged("drain begins, no new leases; 3 leases held")
    assert service.logged("drained in")


sides = pytest.mark.parametrize("side", ["threads", "asyncio"])
cut = pytest.mark.parametrize("service", [1.0], indirect=True)
