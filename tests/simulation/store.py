"""A simulated store: leasehold's own rules (`entry.py`) on a server with a clock, behind a bad network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from leasehold.core import protocol
from leasehold.core.entry import RESTING, Entry
from leasehold.core.protocol import SECOND, Ask, Busy, Grant, Holding, Refusal, Renewal, run_steps
from leasehold.errors import StoreUnavailable
from leasehold.stores.memory import MemoryStore, Table, _MemoryDriver

from .world import NEVER, Process, World

NOBODY = (0, 0, "")
"""The row of a name that nobody has asked for."""


class Call(NamedTuple):
    """A request: an operation that the server runs as a whole."""

    operation: str
    arguments: tuple[Any, ...]


class Refused:
    """Instead of an answer: the server was not there, or broke the connection before it did anything."""


class Silence:
    """Instead of an answer: there was none in time."""


class Store(protocol.Store):
    """What a client knows of the store: each operation is one request."""

    scheme = "simulated"
    fair = True
    lacks: Mapping[str, str] = {}
    keeps_places = True

    def acquire(self, ask: Ask) -> Any:
        return (yield Call("acquire", (ask,)))

    def keep_waiting(self, batch: Sequence[Ask]) -> Any:
        return (yield Call("keep_waiting", (batch,)))

    def renew(self, batch: Sequence[Renewal]) -> Any:
        return (yield Call("renew", (batch,)))

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Any:
        return (yield Call("release", (name, attempt, token, hint)))

    def abandon(self, name: str, attempt: str) -> Any:
        return (yield Call("abandon", (name, attempt)))

    def interrupt(self, name: str, force: bool) -> Any:
        return (yield Call("interrupt", (name, force)))

    def inspect(self, name: str) -> Any:
        return (yield Call("inspect", (name,)))

    def scan(self, prefix: str, after: str, count: int) -> Any:
        return (yield Call("scan", (prefix, after, count)))

    def read_note(self, name: str) -> Any:
        return (yield Call("read_note", (name,)))

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Any:
        return (yield Call("write_note", (name, attempt, token, text)))

    def read_clock(self, name: str) -> Any:
        return (yield Call("read_clock", (name,)))

    def tidy(self) -> Any:
        return (yield Call("tidy", ()))


class JointStore(Store):
    """One that can grant several names in one step."""

    def acquire_all(self, asks: Sequence[Ask]) -> Any:
        return (yield Call("acquire_all", (asks,)))


class Session(_MemoryDriver):
    """What the server knows of one client; waking it sends a message."""

    def answer(self, request: Any) -> Any:
        return self._handle(request)


class Server:
    """Runs one operation at a time. ``pushes``: "grant" tells a granted waiter its token, "ring" only calls it."""

    def __init__(self, world: World, pushes: str, rate: float) -> None:
        self.world = world
        self.pushes = pushes
        self.rate = rate
        self.step_us = 0
        self.back = 0.0
        """By how many seconds its clock was set back, in all: what it keeps, it keeps for so much longer."""
        self.wall_step_us = 0
        self.down_until = self.paused_until = 0.0
        self.rules = MemoryStore("simulated")
        self.table = Table(self.now_us, self.wall_us)
        self.parsed: dict[str, tuple[tuple[int, int, str], Entry]] = {}
        """What the judge has read, and of which row."""
        self.placed: dict[tuple[str, str | None], float] = {}
        """(name, data) → when that ask had its place in the queue, or the lease."""
        self.granted: dict[tuple[str, int], float] = {}
        """(name, token) → when that was first seen to be a holder's, by the world's clock."""
        self.before: list[Any] = []
        self.after: list[Any] = []
        """Called before and after each operation."""

    def now_us(self) -> int:
        return 10**9 + self.step_us + int(self.world.now * self.rate * SECOND)

    def wall_us(self) -> int:
        return 10**15 + self.wall_step_us + self.now_us()

    def perform(self, client: str, session: Session, call: Call) -> Any:
        for each in self.before:
            each()
        broken = self.holders(call.arguments[0]) if call.operation == "interrupt" else []
        answer = run_steps(getattr(self.rules, call.operation)(*call.arguments), session.answer)
        for each in broken if answer else []:
            self.note_break(call.arguments[0], each, call.arguments[1])
        if isinstance(answer, Busy) and self.pushes == "grant":
            answer = answer._replace(now=self.now_us())
        if call.operation == "keep_waiting" and self.pushes == "grant":
            answer = [each and each._replace(now=self.now_us()) for each in answer]
        if call.operation == "acquire" and (isinstance(answer, Grant) or getattr(answer, "place", None) is not None):
            self.placed.setdefault((call.arguments[0].name, call.arguments[0].data), self.world.now)
        for entry in self.entries().values():
            for holder in entry.holders:
                self.granted.setdefault((entry.name, holder.token), self.world.now)
        self.world.say("server", f"{client}: {_told(call)} → {_answered(answer)}")
        for each in self.after:
            each()
        return answer

    def forget(self) -> None:
        """Lose all that was acknowledged. As in every store, a new row has a version that no earlier one had."""
        self.table.rows = {key: (version + 1, 0, "") for key, (version, _, _) in self.table.rows.items()}

    def note_break(self, name: str, holder: Any, force: bool) -> None:
        if holder.state != RESTING:
            left = (holder.expires - self.now_us()) / self.rate / SECOND
            held = {"owner": json.loads(holder.data or '""'), "token": holder.token, "limit": left}
            self.world.history.add("broken", name, outcome="by force" if force else "told", **held)

    # What the judge asks, without a network in between.

    def entries(self) -> dict[str, Entry]:
        return {name: self.entry(name) for _, name in self.table.rows}

    def entry(self, name: str) -> Entry:
        """How the name stands, to be looked at only."""
        row = self.table.rows.get(("", name), NOBODY)
        known, entry = self.parsed.get(name, (None, None))
        if entry is None or known is not row:
            entry = Entry.load(name, row[1], row[2])
            self.parsed[name] = (row, entry)
        return entry

    def holders(self, name: str) -> list[Any]:
        now = self.now_us()
        return [each for each in self.entry(name).holders if each.expires > now]

    def stored(self, name: str, token: int) -> int:
        """This token if the store has it as a holder's, else whose it is now (0: nobody's)."""
        tokens = [each.token for each in self.holders(name)]
        return token if token in tokens else max(tokens, default=0)


class Network:
    """Between each client and the server: late, lost, doubled, cut in one or both directions, out of order."""

    def __init__(self, world: World, server: Server, delay: float, loss: float, double: float, ordered: bool) -> None:
        self.world = world
        self.server = server
        self.delay = delay
        self.loss = loss
        self.double = double
        self.ordered = ordered
        self.joint = False
        """Whether clients know that several names can be had in one step."""
        self.late = 0.5
        """How much of what is sent into a cut is late, not lost."""
        self.latest: dict[tuple[str, bool], float] = {}
        self.cuts: dict[tuple[str, bool], float] = {}
        """(client, towards the server) → until when nothing passes."""

    def heal(self) -> None:
        self.loss = self.double = 0.0
        self.cuts.clear()

    def times(self, client: str, upwards: bool, what: str) -> list[float]:
        """When a message arrives, if it does; perhaps twice. What is sent into a cut is lost, or late."""
        rng = self.world.rng
        cut = self.cuts.get((client, upwards), 0.0)
        times = []
        for _ in range(2 if rng.random() < self.double else 1):
            sent = self.world.now
            if sent < cut:
                if rng.random() >= self.late:
                    continue
                sent = cut
            if rng.random() >= self.loss:
                times.append(sent + rng.expovariate(1 / self.delay))
                if self.ordered:
                    times[-1] = self.latest[client, upwards] = max(times[-1], self.latest.get((client, upwards), 0.0))
        if len(times) != 1:
            self.world.say(client, f"{what} {'comes twice' if times else 'is lost'}")
        elif self.world.now < cut:
            self.world.say(client, f"{what} is cut off and comes late, at {times[0]:.3f}")
        return times

    def to_server(self, driver: Driver, number: int, call: Call) -> None:
        def arrive() -> None:
            server = self.server
            if self.world.now < server.down_until:
                self.to_client(driver, number, Refused(), f"the refusal of {call.operation}")
            elif self.world.now < server.paused_until:
                self.world.at(server.paused_until, arrive)
            else:
                answer = server.perform(driver.process.name, driver.session, call)
                self.to_client(driver, number, answer, f"the answer to {call.operation}")

        for when in self.times(driver.process.name, True, _told(call)):
            self.world.at(when, arrive)

    def to_client(self, driver: Driver, number: int, answer: Any, what: str) -> None:
        for when in self.times(driver.process.name, False, what):
            self.world.at(when, lambda: driver.arrived(number, answer))


def _told(call: Call) -> str:
    """A request, for the trace. Attempts are random, so they are left out: a seed must tell the same story again."""
    match call.operation, call.arguments:
        case "acquire", (Ask() as ask,):
            return f"acquire {ask.name} {ask.data}"
        case "keep_waiting", (batch,):
            return f"keep waiting for {', '.join(ask.name for ask in batch)}"
        case "acquire_all", (asks,):
            return f"acquire {', '.join(ask.name for ask in asks)} {asks[0].data}"
        case "renew", (batch,):
            return "renew " + ", ".join(f"{each.name} token {each.token}" for each in batch)
        case "release", (name, _, token, _):
            return f"release {name} token {token}"
    return " ".join([call.operation, *call.arguments[:1]])


def _answered(answer: Any) -> str:
    match answer:
        case Grant():
            return f"granted token {answer.token}"
        case Busy():
            return "busy" if answer.place is None else f"busy, {answer.place} ahead"
        case [None | Busy(), *_]:
            return ", ".join("call" if each is None else _answered(each) for each in answer)
        case Refusal():
            return f"busy, the {answer.place}. of them"
        case [Grant(), *_]:
            return f"granted tokens {', '.join(str(each.token) for each in answer)}"
        case [Holding(), *_]:
            return f"tokens {', '.join(str(each.token) for each in answer)} hold it"
        case [str(), *_]:
            return ", ".join(map(str, answer))
        case str():
            return "a note"  # which tells the real time
    return str(answer)


class Driver:
    """A client's end of the network."""

    def __init__(self, process: Process, network: Network) -> None:
        self.on_ring: Any = None
        self.process = process
        self.network = network
        self.session = Session(network.server.table, "")
        self.session.on_ring = self._ring
        self._waiting: dict[int, Any] = {}
        self._number = 0

    async def run(self, steps: Any, limit: float) -> Any:
        try:
            call = next(steps)
        except StopIteration as stop:  # an operation that needs no request
            return stop.value
        self._number += 1
        number = self._number
        future = self._waiting[number] = self.process.loop.create_future()
        timer = self.process.loop.call_later(limit, self.arrived, number, Silence())
        self.network.to_server(self, number, call)
        try:
            answer = await future
        finally:
            timer.cancel()
            self._waiting.pop(number, None)
            steps.close()
        if isinstance(answer, Silence):
            raise StoreUnavailable(f"no answer to {call.operation} within {limit:.3f} s")
        if isinstance(answer, Refused):
            raise StoreUnavailable("refused")
        return answer

    def arrived(self, number: int, answer: Any) -> None:
        """An answer is there; the loop sees it when it runs."""
        if self.process.dead:
            return
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(answer)

    def _ring(self, attempt: str) -> None:
        """On the server: the store calls one of our attempts."""
        server = self.network.server
        if server.pushes == "nothing":
            return
        news = None
        if server.pushes == "grant":
            for entry in server.entries().values():
                for each in entry.holders:
                    if each.attempt == attempt:
                        news = Grant(each.token, at=each.acquired)
        for when in self.network.times(self.process.name, False, "a ring"):
            self.network.world.at(when, lambda: self._rung(attempt, news))

    def _rung(self, attempt: str, news: Grant | None) -> None:
        if not self.process.dead:
            self.process.loop.call_soon(self.on_ring, attempt, news)

    async def listen(self, attempt: str, busy: Any) -> bool:
        return self.network.server.pushes != "nothing"

    def forget(self, attempt: str) -> None:
        pass

    def after_fork(self) -> None:
        pass

    def new_loop(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def run_at_exit(self, steps: Any, limit: float) -> Any:
        raise StoreUnavailable("the simulation is over")

    def close_at_exit(self) -> None:
        pass


__all__ = ["NEVER", "Call", "Driver", "JointStore", "Network", "Refused", "Server", "Session", "Store"]
