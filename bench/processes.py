"""The other end of ``child.py``: start clients of a peer and talk to them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from .peers.base import Base

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 600.0
"""How long a client may take over one command."""


def environment() -> dict[str, str]:
    """Ours, but with compiled modules kept: else every start would compile them anew."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


Fresh: TypeAlias = Callable[[], contextlib.AbstractContextManager[dict[str, tuple[str, str]]]]


class Child:
    """A process with one client in it."""

    def __init__(self, module: str, target: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.child", module, target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        )

    def send(self, command: str, *arguments: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self, within: float = PATIENCE) -> Any:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], within)[0]:
            raise RuntimeError(f"a client has not answered within {within:g} s: {self.process.args!r}")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a client has died: {self.process.args!r}")
        return json.loads(line)

    def do(self, command: str, *arguments: object, within: float = PATIENCE) -> Any:
        self.send(command, *arguments)
        return self.answer(within)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> None:
        """It closes what it has open, if it is not too busy for that."""
        if self.process.poll() is None:
            try:
                self.process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                self.kill()


@contextlib.contextmanager
def children(peer: tuple[str, str], count: int) -> Iterator[list[Child]]:
    """So many clients of a peer, ready."""
    started: list[Child] = []
    try:
        started.extend(Child(*peer) for _ in range(count))
        for child in started:
            child.answer()
        yield started
    finally:
        for child in started:
            child.stop()


class Setting(NamedTuple):
    """What a measure is given."""

    peers: dict[str, tuple[str, str]]
    """Name: (module, target). The first one is ours."""
    rounds: int
    quick: bool
    pairs: int = 200
    """How many acquires and releases in a row. A store whose every write waits for the disk asks for fewer."""
    processes: tuple[int, ...] = (2, 8, 32)
    """How many contend for one name."""
    fresh: Fresh | None = None
    """Sets up the store once more, empty, in a context that gives its peers."""
    filling: Callable[[str], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """In this context the store at a target need not wait for the disk: it is being filled, not measured."""
    where: str = ""
    """Said at the end of a line's name: ", on one core" or ", 1 ms away"."""

    rtt: float = 0.0
    """Seconds of a round trip to the server, where a relay stands for a network."""

    def kind(self, name: str) -> type[Base]:
        """The class of a peer, which says what it can do."""
        found: type[Base] = import_module(f"bench.peers.{self.peers[name][0]}").Peer
        return found

    def waiting(self) -> Setting:
        """The same with the peers that can wait for a name that another has."""
        return self._replace(peers={name: peer for name, peer in self.peers.items() if self.kind(name).waits})

    def turns(self) -> Iterator[tuple[int, str, tuple[str, str]]]:
        """Each round has every peer once, each time beginning with another: drift of the machine hits all alike."""
        names = list(self.peers)
        for number in range(self.rounds):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                yield number, name, self.peers[name]
