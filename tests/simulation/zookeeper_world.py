"""Worlds whose store is ZooKeeper's: its logic, its sessions and its guard as they are, on the model server.

``python -m simulation.zookeeper_world FIRST LAST`` in ``tests/`` goes on until one fails; with one number it shows the
trace of that world.

A connection is a stream: what it carries is late, not lost; what was sent before it broke may still arrive. A server
that is away breaks all connections, and gives every session its full length when it is back. It notes a sign of life
up to half a tick too early, as one does that was told by a follower.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

from leasehold import aio
from leasehold.core import clock, options
from leasehold.stores.zookeeper import open_url, sessions
from leasehold.stores.zookeeper.guard import Guard
from leasehold.testing.history import Record
from leasehold.testing.virtual import VirtualRegistry

from .run import Result, Simulation, played, told
from .store import Network
from .workload import LONGEST_TTL, Client
from .world import Process, World
from .zookeeper_client import ModelClient
from .zookeeper_server import CHANGES, ModelServer, ModelSession, Operation

TICK = 2.0
"""The server's tickTime: the longest that a ttl of 2 s allows."""
LOOK = 0.25
"""How often the server looks whose session is over."""
FIRST_WALL = 10**12
now_running: list[Process] = []
"""The process whose code runs; its clock is the clock."""


@contextmanager
def running(process: Process) -> Iterator[None]:
    now_running.append(process)
    try:
        yield
    finally:
        now_running.pop()


class WorldServer:
    """What a simulation and its judge ask of a server, of the model server."""

    pushes = "ring"

    def __init__(self, world: World, pushes: str, rate: float) -> None:
        self.world, self.rate = world, rate
        self.back, self.wall_step_us, self._step_us = 0.0, 0, 0
        self._paused_until, self._down_until = 0.0, 0.0
        self.placed: dict[tuple[str, str | None], float] = {}
        self.granted: dict[tuple[str, int], float] = {}
        self.before: list[Any] = []
        self.after: list[Callable[[], object]] = []
        self.clients: list[Any] = []
        self.keeps_all = False
        """Whether it only restarts where others forget: what is done once is known to the store alone."""
        self.model = ModelServer(self.wall_ms)
        self.model.after.append(self.performed)
        self.model.before.append(self.see_force)
        self.processes: dict[int, str] = {}
        self.forcing: set[tuple[str, str]] = set()
        """Which process is about to break which lease by force."""
        world.after(LOOK, self.look)

    # Its clock. A step is one of the wall clock, which nothing but tokens after a loss of all data rests on, and
    # ``min_hold``: it goes back, as a world without such a loss allows.

    @property
    def step_us(self) -> int:
        return 0

    @step_us.setter
    def step_us(self, step: int) -> None:
        self._step_us = step

    def now_us(self) -> int:
        return int(self.world.now * self.rate * 1e6)

    def wall_ms(self) -> int:
        return FIRST_WALL + self._step_us // 1000 + self.now_us() // 1000

    # Its life.

    @property
    def paused_until(self) -> float:
        return self._paused_until

    @paused_until.setter
    def paused_until(self, until: float) -> None:
        self._paused_until = max(self._paused_until, until)  # else what came in the first pause would come later

    @property
    def down_until(self) -> float:
        return self._down_until

    @down_until.setter
    def down_until(self, until: float) -> None:
        """Every connection breaks now; sessions get their full length again at the end."""
        self._down_until = until
        for client in self.clients:
            self.hang_up(client.connection)
        for session in self.model.sessions.values():
            self.model.cut_off(session)

        def back() -> None:
            for session in self.model.sessions.values():
                session.heard = self.world.now

        self.world.at(until, back)

    def hang_up(self, connection: Any) -> None:
        """Close the server's end; the client's sees it later."""
        for client in self.clients:
            if connection is not None and client.connection is connection:
                connection.served = False
                client.wire.down(connection, lambda c=client: c.drop() if c.connection is connection else None)

    @property
    def away(self) -> bool:
        return self.world.now < max(self.down_until, self.paused_until)

    def look(self) -> None:
        for session in list(self.model.sessions.values()):
            if not self.away and self.world.now * self.rate > session.heard * self.rate + session.timeout:
                self.world.say("server", f"session {session.number} of {self.processes.get(session.number)} is over")
                connection = session.connection
                self.model.end(session)
                self.hang_up(connection)
        self.world.after(LOOK, self.look)

    def forget(self) -> None:
        if not self.keeps_all:
            self.model.forget()

    # What the judge sees.

    def performed(self, session: ModelSession | None, operation: Operation, answer: Any) -> None:
        who = self.processes.get(session.number, "?") if session else "?"
        if operation.what in (*CHANGES, "multi", "end"):
            self.world.say("server", f"{who}: {_told(operation)} → {_answered(answer)}")
        failed = isinstance(answer, Exception)
        for part in operation.parts or (operation,):
            self._note(session, part, failed)
        for each in self.after:
            each()

    def _note(self, session: ModelSession | None, part: Operation, failed: bool) -> None:
        """A place in line, and a break."""
        if failed or part.what not in ("create", "set"):
            return
        pieces = part.path.split("/")
        if len(pieces) != 7:
            return
        record, name = json.loads(part.data), unquote(pieces[5])
        if part.what == "create" and record["owner"]:
            self.placed.setdefault((name, record["data"]), self.world.now)
        if part.what == "set" and record["state"] == "broken":
            left = record["ttl"] / 1e6
            held = {"owner": json.loads(record["data"] or '""'), "token": record["token"], "limit": left}
            self.world.history.add("broken", name, outcome="told", **held)

    def see_force(self, session: ModelSession, operation: Operation) -> None:
        """A holder's node that another process deletes, whatever its version: by force."""
        node = self.model.tree.get(operation.path)
        if operation.what != "delete" or operation.version != -1 or node is None or not node.owner:
            return
        child, name = operation.path.rpartition("/")[2], unquote(operation.path.split("/")[5])
        who = self.processes.get(session.number, "")
        if self.processes.get(node.owner) == who and (who, name) not in self.forcing:
            return
        for each in self.holders(name):
            if each.child == child and each.state != "waiting":
                held = {"owner": json.loads(each.data or '""'), "token": each.token, "limit": each.ttl}
                self.world.history.add("broken", name, outcome="by force", **held)

    def entries(self) -> dict[str, Any]:
        return {}

    def entry(self, name: str) -> Any:
        return SimpleNamespace(queue=[], holders=[])

    def in_line(self, name: str) -> list[Any]:
        """All that hold or wait, in the order of their numbers; ``fits`` says who holds by that."""
        found = []
        for path, node in self.model.tree.items():
            pieces = path.split("/")
            if len(pieces) != 7 or unquote(pieces[5]) != name or pieces[6].startswith("rest."):
                continue
            fields = json.loads(node.data)
            limit, weight = map(int, pieces[6].split(".")[2:4])
            token = fields["token"] or int(pieces[3]) * 1000 + node.written
            told = {"data": fields["data"], "token": token, "owner": fields["owner"], "state": fields["state"]}
            told |= {"child": pieces[6], "ttl": fields["ttl"] / 1e6}
            number = int(pieces[6].rpartition(".")[2])
            found.append(SimpleNamespace(**told, number=number, limit=limit, weight=weight, expires=0))
        found.sort(key=lambda each: each.number)
        used = 0
        for each in found:
            used += each.weight
            each.fits = used <= each.limit
        return found

    def holders(self, name: str) -> list[Any]:
        return [each for each in self.in_line(name) if each.fits]

    def stored(self, name: str, token: int) -> int:
        tokens = [each.token for each in self.holders(name)]
        return token if token in tokens else max(tokens, default=0)


def _told(operation: Operation) -> str:
    if operation.parts:
        return " + ".join(map(_told, operation.parts))
    data = json.loads(operation.data) if operation.data.startswith(b"{") else {}
    name = operation.path.rpartition("/")[0].rpartition("/")[2]
    child = operation.path.rpartition("/")[2]
    return f"{operation.what} {name}/{child[:4]}…{child[-12:]} {data.get('state', '')} {data.get('data', '')}"


def _answered(answer: Any) -> str:
    if isinstance(answer, list):
        return ", ".join(map(_answered, answer))
    if isinstance(answer, Exception):
        return type(answer).__name__
    return "done"


class Streams(Network):
    """Between clients and the server. ``loss`` makes a piece late, as TCP does, and ``double`` breaks a connection."""

    def arrival(self, client: str, upwards: bool, stream: Any) -> float:
        rng, now = self.world.rng, self.world.now
        sent = max(now, self.cuts.get((client, upwards), 0.0))
        late = rng.uniform(0.2, 1.0) if rng.random() < self.loss else 0.0
        at = max(sent + late + rng.expovariate(1 / self.delay), self.latest.get((stream, upwards), 0.0))
        self.latest[stream, upwards] = at
        return at


class ProcessWire:
    """One process's way to the server, and its threads of kazoo's: these run also while its loop is blocked."""

    def __init__(self, process: Process, network: Streams) -> None:
        self.process, self.network = process, network
        self.world, self.server = network.world, network.server

    def up(self, connection: Any, do: Callable[[], object]) -> None:
        self.world.at(self.network.arrival(self.process.name, True, connection), lambda: self._arrive(connection, do))

    def _arrive(self, connection: Any, do: Callable[[], object]) -> None:
        if self.world.now < self.server.down_until:
            connection.served = False
            self.down(connection, lambda: self._refused(connection))
        elif self.world.now < self.server.paused_until:
            self.world.at(self.server.paused_until, lambda: self._arrive(connection, do))
        else:
            do()

    def _refused(self, connection: Any) -> None:
        for client in self.server.clients:
            if client.connection is connection:
                client.drop()

    def down(self, connection: Any, do: Callable[[], object]) -> None:
        self.world.at(self.network.arrival(self.process.name, False, connection), lambda: self.local(do))

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        self.world.after(seconds / self.process.rate, lambda: self.local(do))

    def local(self, do: Callable[[], object]) -> None:
        if self.process.dead:
            return
        if self.world.now < self.process.paused_until:
            self.world.at(self.process.paused_until, lambda: self.local(do))
            return
        with running(self.process):
            do()

    def heard(self, session: ModelSession) -> None:
        session.heard = self.world.now - self.world.rng.uniform(0.0, TICK / 2)
        self.server.processes[session.number] = self.process.name


class GuardEvents:
    """In place of a guard's thread: its rounds are events of the world."""

    def __init__(self, guard: Guard, wire: ProcessWire) -> None:
        self.guard, self.wire = guard, wire
        self.number = 0
        self.ended = False

    def plan(self, seconds: float) -> None:
        self.number += 1
        self.wire.after(seconds, lambda number=self.number: self.turn(number))  # type: ignore[misc]

    def turn(self, number: int) -> None:
        if number == self.number and not self.ended:
            pause = self.guard.make_round()
            if number == self.number:
                self.plan(pause)


class WorldClient(Client):
    """One process of such a world."""

    def connect(self, network: Any) -> Any:
        process: Any = self.process
        if not hasattr(process, "wire"):
            process.wire = ProcessWire(process, network)
            turn = process.turn

            def turn_with_its_clock() -> None:
                with running(process):
                    turn()

            process.turn = turn_with_its_clock
        with running(process):
            opened = open_url("zookeeper://model:2181", "")
            driver: Any = opened.tasks()

        async def close() -> None:
            driver.clients.close()

        driver.close = close
        options = {"namespace": "", "owner": process.name, "kinds": None, "defaults": {}}
        store = opened.store if network.joint else SingleNames(opened.store)
        core = VirtualRegistry(store, driver, process.local, **options)
        process.cores.append(core)
        return aio.Locks(core)

    async def break_lease(self, name: str, force: bool) -> None:
        if force:
            self.server.forcing.add((self.process.name, name))  # type: ignore[attr-defined]
        await super().break_lease(name, force)

    def left(self, name: str, what: str) -> None:
        """A listing and the nodes that it lists are read one after the other, so a member may be seen late."""
        if " has joined after " not in what:
            super().left(name, what)


class SingleNames:
    """The store, without its step for several names."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def acquire_all(self, asks: Any) -> Any:
        return None
        yield


class ZooKeeperSimulation(Simulation):
    server_class = WorldServer
    network_class = Streams
    server: Any

    def __init__(self, seed: int, client: type[Client] = WorldClient) -> None:
        super().__init__(seed, client)
        self.server.keeps_all = self.kind == "once"

    @property
    def in_turn(self) -> bool:
        """Of those that are let in at once, as readers are, each claims for itself, and tokens are in that order."""
        return self.calm and all(counter.limit == 1 for counter in self.counters.values())

    def observe(self) -> None:
        for one in self.clients:
            one.observe()
        for name in self.counters:
            for each in self.server.holders(name):
                self.world.history.add("seen", name, ask=json.loads(each.data or '""'))

    def allow_for_the_clock(self, record: Record) -> Record:
        """What belongs to a dead process lasts as long as its session, which is longer than its ttl."""
        record = super().allow_for_the_clock(record)
        if self.calm or record.op not in ("acquire", "over") or record.limit is None:
            return record
        return record._replace(limit=record.limit + 0.15 * LONGEST_TTL + 1.0 + 1.5 * TICK + LOOK)

    def see_that_grants_are_claimed(self) -> None:
        """Who was let in and has not claimed is seen by who waits behind it."""

    def see_that_nothing_is_left(self) -> None:
        self.world.run(lambda: False, self.world.now + 20.0)
        for name in self.counters:
            for each in self.server.in_line(name):
                self.world.history.add("left", name, outcome=f"{each.owner} {each.data} in the store")


@contextmanager
def patched(seed: int) -> Iterator[None]:
    """The store's sessions are with the model server, its clock and its guard are the world's."""

    def client(hosts: str, timeout: float, handler: Any, **options: Any) -> ModelClient:
        wire = now_running[-1].wire  # type: ignore[attr-defined]
        made = ModelClient(wire.server.model, wire, timeout, handler)
        wire.server.clients.append(made)
        return made

    guards: dict[Guard, GuardEvents] = {}

    def start(guard: Guard) -> None:
        if guard not in guards:
            guards[guard] = GuardEvents(guard, now_running[-1].wire)  # type: ignore[attr-defined]
        guards[guard].plan(0.0)

    def wake(guard: Guard) -> None:
        if guard in guards:
            guards[guard].plan(0.0)

    def end(guard: Guard) -> None:
        if guard in guards:
            guards[guard].ended = True

    def at_once(name: str, function: Any, *arguments: Any) -> Any:
        function(*arguments)
        return SimpleNamespace(join=lambda seconds: None)

    real = clock.now
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda: now_running[-1].local() if now_running else real())
        patch.setattr(options, "urandom", random.Random(seed).randbytes)
        patch.setattr(sessions, "KazooClient", client)
        patch.setattr(sessions, "start_thread", at_once)
        for method in (start, wake, end):
            patch.setattr(Guard, method.__name__, method)
        yield


def simulate_zookeeper(seed: int, client: type[Client] = WorldClient) -> Result:
    with patched(seed):
        return played(ZooKeeperSimulation(seed, client))


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[-1]) + 1):
        began = time.process_time()
        result = simulate_zookeeper(number)
        took = time.process_time() - began
        counts = f"{result.kind}, {result.grants} grants, {result.faults} faults, {len(result.violations)} violations"
        print(f"seed {number}: {counts}, {result.simulated / took:.0f} × real time (by CPU time)", flush=True)
        if result.violations or len(sys.argv) == 2:
            print("\n".join(map(str, result.violations[:10])))
            if len(sys.argv) == 2:
                print("\n".join(told(result.trace)))
        if result.violations:
            sys.exit(1)
