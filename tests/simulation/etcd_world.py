"""The same worlds with etcd's own store logic and driver. The server is the model of etcd, behind the same network.

``python -m simulation.etcd_world SEED`` in ``tests/`` shows a trace, ``… FIRST LAST`` goes on until one fails.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from leasehold import aio
from leasehold.core import clock, entry
from leasehold.core.protocol import Steps
from leasehold.stores.etcd import wire
from leasehold.stores.etcd.errors import GrpcError
from leasehold.stores.etcd.store import EtcdStore
from leasehold.stores.etcd.tasks import EtcdTasks
from leasehold.testing.virtual import VirtualLoop, VirtualRegistry

from .etcd_model import EtcdModel, Refusal, Stored, Stream
from .run import Result, Simulation, simulate
from .store import Network, Server
from .workload import Client
from .world import World

LOOK = 0.5
"""How often the server ends the leases that have run out, in seconds of the world."""
CLAIMED = 1.0
"""Without faults, the first waiter takes what is there for it within so many seconds; who polls, a little later."""
NAMES = b"leasehold//"


class Tagged(wire.EtcdCall):
    """A call that breaks a lease."""

    about: tuple[str, bool]


class NamingStore(EtcdStore):
    """Says which of its calls break a lease, so that the server can note that."""

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        steps = super().interrupt(name, force)
        try:
            call = next(steps)
            while True:
                tagged = Tagged(*call)
                tagged.about = (name, force)
                try:
                    answer = yield tagged
                except Exception as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as stop:
            return bool(stop.value)


class Permit(NamedTuple):
    """A holder or a waiter, as the judge sees it."""

    attempt: str
    state: int
    owner: str
    data: str | None
    limit: int
    weight: int
    token: int
    acquired: int
    expires: int
    ttl: int


class Name(NamedTuple):
    name: str
    holders: list[Permit]
    queue: list[Permit]


STATES = {0: entry.HELD, 1: entry.HELD, 2: entry.RESTING}


class EtcdServer(Server):
    def __init__(self, world: World, pushes: str, rate: float) -> None:
        self._down_until = 0.0
        super().__init__(world, pushes, rate)
        self.model = EtcdModel(lambda: self.now_us() / 1e6)
        self._parsed: dict[tuple[bytes, int], list[Any]] = {}
        self.streams: list[SimulatedStream] = []
        world.after(LOOK, self._look)

    @property
    def down_until(self) -> float:  # type: ignore[override]
        return self._down_until

    @down_until.setter
    def down_until(self, when: float) -> None:
        self._down_until = when
        if when:
            self._break_streams()
            self.world.at(when, self.model.restart)

    def _break_streams(self) -> None:
        for stream in self.streams:
            stream.broken()
        self.streams.clear()

    def _look(self) -> None:
        self.world.after(LOOK, self._look)
        if self.world.now >= max(self.down_until, self.paused_until):
            before = self.model.revision
            self.model.expire()
            if self.model.revision != before:
                self._observed()

    def forget(self) -> None:
        """Lose all but the notes, as the other simulated store does: work that was done once stays done."""
        self._break_streams()
        notes = self.model.under(NAMES + b"n/", NAMES + b"n/\xff")
        self.model.forget()
        self.model.restore(notes)

    def handle(self, client: str, call: wire.EtcdCall) -> list[bytes] | GrpcError:
        for each in self.before:
            each()
        about = call.about if isinstance(call, Tagged) else None
        held = self._states(about[0]) if about else {}
        answer: list[bytes] | GrpcError
        try:
            answer = self.model.call(call.method, call.messages)
        except Refusal as refusal:
            answer = GrpcError(refusal.code, refusal.said)
        if about:
            now = self._states(about[0])
            for token, (permit, state) in held.items():
                if token not in now or (now[token][1], state) == (1, 0):
                    self.note_break(about[0], permit, about[1])
        self.world.say("server", f"{client}: {_told(call)} → {'an error' if isinstance(answer, GrpcError) else 'done'}")
        self._observed()
        return answer

    def _states(self, name: str) -> dict[int, tuple[Permit, int]]:
        stored = self.model.under(NAMES + b"h/" + name.encode() + b"\0", NAMES + b"h/" + name.encode() + b"\1")
        return {each.create: (self._permit(each), self._fields(each)[1]) for each in stored}

    def _observed(self) -> None:
        for one in self.entries().values():
            for each in (*one.holders, *one.queue):
                if each.data is not None:
                    self.placed.setdefault((one.name, each.data), self.world.now)
            for each in one.holders:
                self.granted.setdefault((one.name, each.token), self.world.now)
        for callback in self.after:
            callback()

    def note_break(self, name: str, holder: Any, force: bool) -> None:
        """A renewal is two calls: one that has read the key before it was broken may still have its whole term."""
        super().note_break(name, holder._replace(expires=self.now_us() + int(holder.ttl * self.rate * 1e6)), force)

    # What the judge asks.

    def _fields(self, stored: Stored) -> list[Any]:
        known = self._parsed.get((stored.key, stored.mod))
        if known is None:
            known = self._parsed[stored.key, stored.mod] = json.loads(stored.value)
        return known

    def _permit(self, stored: Stored) -> Permit:
        _, state, owner, _, data, _, limit, weight, *_ = self._fields(stored)
        epoch = self.model.keys.get(NAMES + b"epoch")
        token = stored.create + (int(epoch.value) if epoch else 0)
        lease = self.model.leases.get(stored.lease)
        expires = int(lease.expires * 1e6) if lease else 0
        attempt = stored.key[-32:].decode()
        return Permit(attempt, STATES[state], owner, data, limit, weight, token, 0, expires, lease.ttl if lease else 0)

    def entries(self) -> Any:
        found: dict[str, Name] = {}
        for kind, field in ((b"h/", 1), (b"w/", 2)):
            start = NAMES + kind
            for each in self.model.under(start, start + b"\xff"):
                name = each.key[len(start) :].partition(b"\0")[0].decode()
                found.setdefault(name, Name(name, [], []))[field].append(self._permit(each))  # type: ignore[union-attr]
        return found

    def entry(self, name: str) -> Any:
        return self.entries().get(name) or Name(name, [], [])

    def holders(self, name: str) -> list[Any]:
        """What is there, though it may have run out: until it is gone nobody else can have it."""
        return list(self.entry(name).holders)


class EtcdNetwork(Network):
    """TCP doubles nothing, and a stream is in order until it breaks."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.double = 0.0

    def in_order(self, client: str, upwards: bool, latest: float) -> float:
        """When the next message of a stream arrives. What is cut off comes later."""
        sent = max(self.world.now, self.cuts.get((client, upwards), 0.0))
        return max(latest, sent + self.world.rng.expovariate(1 / self.delay))


class SimulatedStream:
    """A watch stream, as a client has it."""

    def __init__(self, process: Any, network: EtcdNetwork, server: EtcdServer) -> None:
        self._process, self._network, self._server = process, network, server
        self._told: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._latest = {True: 0.0, False: 0.0}
        self._closed = False
        self._stream = Stream(server.model, self._tell)
        server.streams.append(self)

    def _later(self, upwards: bool, what: Callable[[], object]) -> None:
        when = self._network.in_order(self._process.name, upwards, self._latest[upwards])
        self._latest[upwards] = when
        self._network.world.at(when, what)

    def send(self, messages: list[bytes]) -> None:
        for message in messages:
            self._later(True, lambda message=message: self._arrived(message))

    def _arrived(self, message: bytes) -> None:
        world = self._network.world
        if world.now < self._server.paused_until:
            world.at(self._server.paused_until, lambda: self._arrived(message))
        elif not self._closed:
            self._stream.ask(message)

    def _tell(self, message: bytes | Exception) -> None:
        self._later(False, lambda: self._heard(message))

    def _heard(self, message: bytes | Exception) -> None:
        if not self._process.dead and not self._process.loop.is_closed():
            self._process.loop.call_soon(self._told.put_nowait, message)

    def broken(self) -> None:
        if not self._closed:
            self._closed = True
            self._stream.close()
            self._tell(ConnectionResetError("the server restarts"))

    async def read(self, seconds: float) -> list[bytes] | None:
        try:
            async with asyncio.timeout(seconds):
                told = await self._told.get()
        except TimeoutError:
            return None
        if isinstance(told, Exception):
            raise told
        return [] if told is None else [told]

    def wake(self) -> None:
        self._told.put_nowait(None)

    def failed(self, error: Exception) -> None: ...

    def close(self) -> None:
        self._closed = True
        self._stream.close()
        if self in self._server.streams:
            self._server.streams.remove(self)


class SimulatedTransport:
    """Where a driver sends its calls."""

    def __init__(self, process: Any, network: EtcdNetwork) -> None:
        self._process, self._network = process, network
        self._server: EtcdServer = network.server  # type: ignore[assignment]

    async def send(self, call: wire.EtcdCall, limit: float) -> list[bytes]:
        loop, world = self._process.loop, self._network.world
        future: asyncio.Future[list[bytes]] = loop.create_future()

        def answered(answer: Any) -> None:
            if self._process.dead or future.done():
                return
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        def arrive() -> None:
            if world.now < self._server.down_until:
                back(ConnectionResetError("refused"))
            elif world.now < self._server.paused_until:
                world.at(self._server.paused_until, arrive)
            else:
                back(self._server.handle(self._process.name, call))

        def back(answer: Any) -> None:
            for when in self._network.times(self._process.name, False, f"the answer to {_told(call)}"):
                world.at(when, lambda: answered(answer))

        for when in self._network.times(self._process.name, True, _told(call)):
            world.at(when, arrive)
        timer = loop.call_later(limit, answered, TimeoutError(f"no answer within {limit:.3f} s"))
        try:
            return await future
        finally:
            timer.cancel()

    async def watch(self, limit: float) -> SimulatedStream:
        await asyncio.sleep(self._network.delay)
        if self._server.pushes == "nothing" or self._network.world.now < self._server.down_until:
            raise ConnectionResetError("refused")
        return SimulatedStream(self._process, self._network, self._server)

    def after_fork(self) -> None:
        pass

    async def close(self) -> None:
        pass


def _told(call: wire.EtcdCall) -> str:
    return call.method.decode().rpartition("/")[2]


class EtcdClient(Client):
    def connect(self, network: Any) -> Any:
        store = NamingStore("")
        driver: Any = EtcdTasks(store, SimulatedTransport(self.process, network), "etcd", None)  # type: ignore[arg-type]
        options = {"namespace": "", "owner": self.process.name, "kinds": None, "defaults": {}}
        core = VirtualRegistry(store, driver, self.process.local, **options)
        self.process.cores.append(core)
        return aio.Locks(core)


class EtcdSimulation(Simulation):
    server_class = EtcdServer
    network_class = EtcdNetwork

    def __init__(self, seed: int, client: type[Client] = EtcdClient) -> None:
        super().__init__(seed, client)
        self._fits_since: dict[tuple[str, str], float] = defaultdict(lambda: self.world.now)

    def run(self, strict: bool = False) -> Result:
        with virtual_clock(self.server):
            return super().run(strict)

    def see_that_who_fits_is_let_in(self, name: str) -> None:
        """Nobody lets a waiter in: it takes the name by itself, see below."""

    def see_that_grants_are_claimed(self) -> None:
        """Without faults a waiter takes the name soon after it is there for it."""
        fits = set()
        for name, one in self.server.entries().items():
            if one.queue and one.queue[0].limit - sum(each.weight for each in one.holders) >= one.queue[0].weight:
                fits.add((name, one.queue[0].attempt))
        for key in set(self._fits_since) - fits:
            del self._fits_since[key]
        for name, attempt in fits:
            waited = self.world.now - self._fits_since[name, attempt]
            if waited > CLAIMED and attempt not in self.kept_out:
                self.kept_out.add(attempt)
                what = f"the first in the queue has not taken the name for {waited:.3f} s"
                self.world.history.add("left", name, outcome=what)


@contextmanager
def virtual_clock(server: Server) -> Iterator[None]:
    """The store reads the clock of the process whose loop is running."""
    now, wall_us = clock.now, clock.wall_us

    def virtual_now() -> float:
        loop = asyncio._get_running_loop()
        return loop.time() if isinstance(loop, VirtualLoop) else now()

    clock.now, clock.wall_us = virtual_now, server.wall_us
    try:
        yield
    finally:
        clock.now, clock.wall_us = now, wall_us


def simulate_etcd(seed: int, client: type[Client] = EtcdClient) -> Result:
    return simulate(seed, client, EtcdSimulation)


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[-1]) + 1):
        began = time.process_time()
        result = simulate_etcd(number)
        took = time.process_time() - began
        counts = f"{result.kind}, {result.grants} grants, {result.faults} faults, {len(result.violations)} violations"
        print(f"simulation of etcd, seed {number}: {counts}, {result.simulated / took:.0f} × real time (by CPU time)")
        if result.violations or len(sys.argv) == 2:
            print(result.story(None if len(sys.argv) == 2 else 40))
        if result.violations:
            sys.exit(1)
