"""SIGTERM and SIGINT to services that hold leases: D9, in real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasehold
import leasehold.on_signals
import leasehold.policy
from kinds.stores import STORES, open_store
from leasehold.lease import DRAINED

from .work import NAMES, TTL

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
        core = self.locks._core
        with self.locks.lock(name) as lease:
            asked = time.monotonic()
            for held in core.call(core.store.inspect(name)):
                if held.token == lease.token:
                    self.taken[name] = asked - held.age

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
        time.sleep(leasehold.on_signals.TOGETHER + 0.1)
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


@pytest.fixture(autouse=True)
def hear_signals() -> Iterator[None]:
    """A job in the background of a shell ignores SIGINT, and so would its children."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits relies on being called."""
    monkeypatch.setattr(leasehold.policy, "FALLBACK", TTL)


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    service = Service(f"sqlite:///{tmp_path}/leases.db", getattr(request, "param", 20))
    yield service
    service.close()


def script(service: Service, side: str, how: str = "waits") -> None:
    file = "script.py" if side == "threads" else "script_aio.py"
    service.start(sys.executable, str(HERE / file), service.url, str(service.grace), how)


def all_done(service: Service) -> None:
    """Its work ended by itself, and the successor had each lease at once."""
    assert service.said("done") == sorted(NAMES), (service.lines, service.errors)
    assert not service.said("cut")
    assert "sent off\n" in service.lines
    service.check_handed_on()
    assert service.logged("drain begins: no new leases; 3 held")
    assert service.logged("drained in")


sides = pytest.mark.parametrize("side", ["threads", "asyncio"])
cut = pytest.mark.parametrize("service", [1.0], indirect=True)


@sides
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_work_ends_and_the_process_with_0(service: Service, side: str, number: int) -> None:
    script(service, side)
    begun = time.monotonic()
    service.signal(number)
    assert service.ended() == 0, service.errors
    all_done(service)
    assert time.monotonic() - begun < service.grace


@sides
@cut
def test_after_the_grace_it_is_cut(service: Service, side: str) -> None:
    script(service, side)
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    assert service.said("cut") == sorted(NAMES)
    assert not service.said("done")
    service.check_handed_on()
    (after,) = (re.search(r"drain gives up after ([\d.]+) s: ", line) for line in service.errors if "gives up" in line)
    assert after is not None
    assert 1 <= float(after[1]) < LONG
    assert service.logged("3 lost: 'one', 'three', 'two'")


@sides
def test_a_second_signal_hurries(service: Service, side: str) -> None:
    service.at_long_work()
    script(service, side)
    begun = time.monotonic()
    service.signal(signal.SIGTERM)
    service.until(lambda: service.logged("drain begins"))
    service.signal_again(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    assert service.said("cut") == sorted(NAMES)
    assert time.monotonic() - begun < service.grace
    assert service.logged("hurried")


@sides
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_that_come_together_are_one(service: Service, side: str, number: int) -> None:
    """As under systemd, which signals a service's main process and its children, where the main one passes it on too.
    Here "together" is long, so that no stall of the machine comes in between."""
    script(service, side, "together")
    service.signal(signal.SIGTERM)
    service.until(lambda: service.logged("drain begins"))
    for _ in range(3):
        service.signal(number)
    assert service.ended() == 0, service.errors
    all_done(service)
    assert not service.logged("hurried")


@sides
def test_a_third_kills(service: Service, side: str) -> None:
    """A body that does not stop though it was told, in a drain that would wait for it."""
    script(service, side, "stubborn")
    service.signal(signal.SIGTERM)
    service.until(lambda: service.logged("drain begins"))
    service.signal_again(signal.SIGTERM)
    service.until(lambda: service.logged("drain gives up"))
    service.signal_again(signal.SIGTERM)
    assert service.killed() == -signal.SIGTERM


@sides
def test_the_end_of_main_waits_for_the_drain(service: Service, side: str) -> None:
    script(service, side, "returns")
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    all_done(service)


def test_a_handler_that_was_there_is_called(service: Service) -> None:
    script(service, "threads", "handler")
    service.signal(signal.SIGTERM)
    service.until(lambda: "handler\n" in service.lines)
    service.until(lambda: service.logged("drained in"))
    service.signal(signal.SIGTERM)  # drained: what happens now is the handler's business alone
    service.until(lambda: service.lines.count("handler\n") == 2)
    service.until(lambda: len(service.taken) == len(service.said("done")) == len(NAMES) and service.said("sent"))
    all_done(service)


@pytest.mark.parametrize(("how", "code"), [("works", 0), ("exits", 7)])
def test_work_in_the_main_thread_is_waited_for(service: Service, how: str, code: int) -> None:
    """Also when there was a handler that exits."""
    script(service, "threads", how)
    service.signal(signal.SIGTERM)
    assert service.ended() == code, service.errors
    all_done(service)


@sides
def test_a_handler_that_raises_ends_the_process(service: Service, side: str) -> None:
    script(service, side, "raises")
    service.signal(signal.SIGTERM)
    assert service.ended() == 1, service.errors
    assert service.logged("RuntimeError: told to stop")
    all_done(service)


@pytest.mark.parametrize(("side", "code"), [("threads", 0), ("asyncio", -signal.SIGTERM)])
def test_a_signal_to_a_forked_child_ends_that_alone(service: Service, side: str, code: int) -> None:
    """With threads it drains what is its own. The parent's loop does not run in it: there is nothing to wait for."""
    script(service, side, "forks")
    service.until(lambda: service.said("forked"))
    os.kill(int(service.said("forked")[0]), signal.SIGTERM)
    service.until(lambda: service.said("ended"))
    assert service.said("ended") == [str(code)]
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    all_done(service)


def test_two_locks_in_one_process(service: Service) -> None:
    script(service, "threads", "two")
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    all_done(service)


def test_a_process_that_outlives_its_drain(service: Service) -> None:
    script(service, "threads", "anew")
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    assert "outlived []\n" in service.lines
    all_done(service)


CLOSED = {
    "threads": """
with leasehold.connect("memory://") as locks:
    locks.drain_on_signals()
""",
    "asyncio": """
async def main():
    async with aio.connect("memory://") as locks:
        locks.drain_on_signals()

asyncio.run(main())
""",
}
NEWCOMER = {
    "threads": """
def draining(locks):
    while locks._core.draining is None:
        time.sleep(0.01)

first, second = leasehold.connect("memory://"), leasehold.connect("memory://")
leases = first.lock("one").acquire(), second.lock("two").acquire()
first.drain_on_signals()
os.kill(os.getpid(), signal.SIGTERM)
draining(first)
second.drain_on_signals()
first.drain_on_signals()
draining(second)
print("draining", [lease.valid for lease in leases])
os.kill(os.getpid(), signal.SIGTERM)
second.close()
first.close()
""",
    "asyncio": """
async def draining(locks):
    while locks._core.draining is None:
        await asyncio.sleep(0.01)

async def main():
    global leases
    first, second = aio.connect("memory://"), aio.connect("memory://")
    leases = await first.lock("one").acquire(), await second.lock("two").acquire()
    first.drain_on_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    await draining(first)
    second.drain_on_signals()
    first.drain_on_signals()
    await draining(second)
    print("draining", [lease.valid for lease in leases])
    os.kill(os.getpid(), signal.SIGTERM)
    await second.close()
    await first.close()

asyncio.run(main())
""",
}
ENDING = """
def end():
    print("ending", flush=True)
    sys.stdin.read()  # of which signals are no end
    print("ended", flush=True)

leasehold.on_signals.TOGETHER = 300
atexit.register(end)
locks = leasehold.connect("memory://")
locks.drain_on_signals()
print("ready", flush=True)
while True:
    time.sleep(1)
"""


class Text:
    """A process that runs a text of these, and says where it is."""

    def __init__(self, text: str) -> None:
        imports = "import asyncio, atexit, os, signal, sys, threading, time, leasehold, leasehold.on_signals"
        pipe = subprocess.PIPE
        words = (sys.executable, "-c", f"{imports}\nfrom leasehold import aio\n{text}")
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def signal_at(self, line: str, number: int) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == line + "\n"
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str, str]:
        said, errors = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, said, errors

    def __enter__(self) -> Text:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()


@sides
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_when_all_are_closed_signals_do_what_they_did(side: str, number: int) -> None:
    with Text(CLOSED[side] + 'print("closed", flush=True)\nwhile True: time.sleep(1)') as process:
        process.signal_at("closed", number)
        code, _, errors = process.ended()
    assert code == -number, errors
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT), errors
    assert "drain" not in errors


@sides
def test_who_asks_for_it_during_a_drain_is_drained_too(side: str) -> None:
    """At once, and hurried like the others; to ask again changes nothing. Neither leaves a close that never ends."""
    before = "signal.signal(signal.SIGTERM, lambda *_: None)\nleasehold.on_signals.TOGETHER = 0\n"
    with Text(before + NEWCOMER[side] + "print(*{lease.lost_reason for lease in leases})") as process:
        code, said, errors = process.ended()
    assert (code, said) == (0, f"draining [True, True]\n{DRAINED}\n"), errors


@sides
def test_to_ask_again_changes_the_grace(service: Service, side: str) -> None:
    service.at_long_work()
    script(service, side, "again")
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    assert service.said("cut") == sorted(NAMES)


def test_one_that_comes_together_with_another_does_not_cut_the_exit() -> None:
    """The drain was quick, and the other is late."""
    with Text(ENDING) as process:
        process.signal_at("ready", signal.SIGTERM)
        process.signal_at("ending", signal.SIGTERM)
        code, said, errors = process.ended()
    assert (code, said) == (0, "ended\n"), errors


def uvicorn(service: Service) -> None:
    service.start(sys.executable, "-m", "uvicorn", "app_asgi:app", "--port", "0", "--lifespan", "on")


def test_uvicorn(service: Service) -> None:
    """Uvicorn ends itself with the signal that it was sent, after its own shutdown."""
    uvicorn(service)
    service.signal(signal.SIGTERM)
    assert service.ended() in (0, -signal.SIGTERM), service.errors
    all_done(service)
    assert service.logged("Application shutdown complete")


@cut
def test_uvicorn_after_the_grace(service: Service) -> None:
    uvicorn(service)
    service.signal(signal.SIGTERM)
    assert service.ended() in (0, -signal.SIGTERM), service.errors
    assert service.said("cut") == sorted(NAMES)
    assert service.logged("3 lost: 'one', 'three', 'two'")
    service.check_handed_on()


def gunicorn(service: Service, *words: str) -> None:
    service.start(
        *(sys.executable, "-m", "gunicorn", "app_wsgi:app", "--bind", "127.0.0.1:0", "--workers", "1"),
        *("--worker-tmp-dir", "/tmp", "--no-control-socket", *words),
    )


@pytest.mark.parametrize("worker", ["sync", "gthread"])
def test_gunicorn(service: Service, worker: str) -> None:
    gunicorn(service, "--worker-class", worker)
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    all_done(service)


@cut
def test_gunicorn_after_the_grace(service: Service) -> None:
    gunicorn(service)
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    assert service.said("cut") == sorted(NAMES)
    assert service.logged("3 lost: 'one', 'three', 'two'")
    service.check_handed_on()


def under_run(service: Service, side: str, *words: str) -> None:
    file = "script.py" if side == "threads" else "script_aio.py"
    command = [sys.executable, str(HERE / file), service.url, str(service.grace), "waits"]
    service.start(sys.executable, "-m", "leasehold", "run", "service", "--url", service.url, *words, "--", *command)


@sides
def test_under_leasehold_run(service: Service, side: str) -> None:
    under_run(service, side)
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    all_done(service)
    assert service.locks.inspect("service") is None


def test_a_second_signal_hurries_under_leasehold_run(service: Service) -> None:
    service.at_long_work()
    under_run(service, "threads")
    service.signal(signal.SIGTERM)
    service.until(lambda: service.logged("drain begins"))
    service.signal_again(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    assert service.said("cut") == sorted(NAMES)
    assert service.logged("hurried")
    service.check_handed_on()


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "script_aio", "uvicorn", "gunicorn", "run", "cut"])
@pytest.mark.parametrize("name", [name for name in STORES if name != "sqlite"])
def test_on_every_store(name: str, how: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The issue's scenario: the work ends, the successor has the leases at once; with a grace of 1 s it is cut."""
    namespace = f"t{uuid.uuid4().hex[:12]}"
    service = Service(open_store(name, request, tmp_path).url, 1.0 if how == "cut" else 20.0, namespace)
    try:
        if how == "uvicorn":
            uvicorn(service)
        elif how == "gunicorn":
            gunicorn(service)
        elif how == "run":
            under_run(service, "threads", "--namespace", namespace)
        else:
            script(service, "asyncio" if how == "script_aio" else "threads")
        service.signal(signal.SIGTERM)
        assert service.ended() in ((0, -signal.SIGTERM) if how == "uvicorn" else (0,)), service.errors
        if how == "cut":
            assert service.said("cut") == sorted(NAMES)
            assert service.logged("3 lost: 'one', 'three', 'two'")
            service.check_handed_on()
        else:
            all_done(service)
    finally:
        service.close()


def test_it_needs_the_main_thread(tmp_path: Path) -> None:
    found: list[Exception] = []

    def call(locks: leasehold.Locks) -> None:
        try:
            locks.drain_on_signals()
        except ValueError as error:
            found.append(error)

    with leasehold.connect(f"sqlite:///{tmp_path}/leases.db") as locks:
        thread = threading.Thread(target=call, args=(locks,))
        thread.start()
        thread.join()
        with pytest.raises(ValueError, match="grace"):
            locks.drain_on_signals(grace=-1)
    assert "main thread" in str(found[0])
