"""One simulation from one seed: ``python -m simulation.run SEED`` in ``tests/`` shows its trace.

``python -m simulation.run FIRST LAST`` goes on until one fails.
"""

from __future__ import annotations

import functools
import gc
import json
import logging
import random
import re
import sys
import time
from collections import Counter as Count
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, NamedTuple

from leasehold.core import timing
from leasehold.core.entry import GRANTED
from leasehold.kinds.once import archive
from leasehold.testing.history import Record, Violation, check
from leasehold.testing.inside import parts

from . import kinds
from .resource import Counter
from .store import Network, Server
from .workload import LONGEST_TTL, Client
from .world import World

BUSY = 200.0
"""How long the processes work, in seconds of the world."""
KINDS = ("lock", "semaphore", "rwlock", "rlock", "all_of", "once", "election", "group")
"""What a world is about, by its seed: each kind in calm worlds and in those whose server forgets."""
SETTLE = 90.0
"""How long everything may take to come to rest after that, without faults."""


class Result(NamedTuple):
    seed: int
    kind: str
    violations: list[Violation]
    trace: list[tuple[float, str, str]]
    records: int
    grants: int
    faults: int
    simulated: float
    first: float = 0.0
    """When the first violation could be seen."""

    def story(self, lines: int | None = 30) -> str:
        """What was violated, and what went before: so many lines around the first violation, or all."""
        alike = Count((each.rule, each.name) for each in self.violations)
        found = {(each.rule, each.name): str(each) for each in reversed(self.violations)}
        head = [
            f"simulation of seed {self.seed}: {len(self.violations)} violations ({self.kind})",
            *(text + (f" (and {alike[kind] - 1} like it)" if alike[kind] > 1 else "") for kind, text in found.items()),
            replay(self.seed),
        ]
        if lines is None:
            return "\n".join([*head, *told(self.trace)])
        at = next((place for place, each in enumerate(self.trace) if each[0] > self.first), len(self.trace))
        around = slice(max(0, at - lines * 4 // 5), at + lines // 5)
        where = f"{lines} of {len(self.trace)} lines, around {self.first:.3f}, the first violation:"
        return "\n".join([*head, where, *told(self.trace[around])])


def told(trace: list[tuple[float, str, str]]) -> list[str]:
    return [f"{at:9.3f}  {who:12} {what}" for at, who, what in trace]


def replay(seed: int) -> str:
    return f"replay: cd tests && python -m simulation.run {seed}"


def first_seen(records: list[Record], judge: Callable[[list[Record]], list[Violation]], text: str) -> float:
    """When the first violation could be seen: the end of the shortest beginning of the history that has one.

    What shows only in the resource has no such beginning; then it is the last that is told of a token in ``text``.
    """
    fewest, enough = 0, len(records)
    if judge(records):
        while enough - fewest > 1:
            half = (fewest + enough) // 2
            fewest, enough = (fewest, half) if judge(records[:half]) else (half, enough)
        return records[enough - 1].returned
    tokens = {int(number) for number in re.findall(r"\d+", text)}
    return max((each.returned for each in records if each.token in tokens), default=records[-1].returned)


class Simulation:
    """``server_class`` and ``network_class`` make the store of the world, and what is between it and its clients."""

    server_class: Callable[..., Any] = Server
    network_class: Callable[..., Any] = Network

    def __init__(self, seed: int, client: type[Client] = Client) -> None:
        self.seed = seed
        self.world = world = World(seed)
        rng = world.rng
        self.forgetful = seed % 5 == 4
        """Whether this store may lose what it acknowledged."""
        self.forgot = False
        """Whether it has: then tokens and fencing are all that is promised."""
        self.calm = seed % 5 == 0
        """Whether nothing goes wrong, so that everything has to be quick."""
        drift = 0.0 if self.calm else 0.003
        push, rate = rng.choice(["grant", "ring", "nothing"]), rng.uniform(1 - drift, 1 + drift)
        self.server = type(self).server_class(world, push, rate)
        noise = [0.005, 0.0, 0.0] if self.calm else [rng.choice([0.002, 0.02, 0.1]), rng.choice([0, 0.02, 0.1]), 0.05]
        self.network = type(self).network_class(world, self.server, *noise, ordered=self.calm)
        self.kind = KINDS[seed // 5 % len(KINDS)] if client.kinds else "lock"
        self.network.joint = rng.random() < 0.5
        self.counters = self.resources(client)
        rates = [rng.uniform(1 - drift, 1 + drift) for _ in range(rng.randint(2, 4))]
        self.make = functools.partial(client, world, network=self.network, counters=self.counters, calm=self.calm)
        self.clients: list[Client] = []
        for number, rate in enumerate(rates):
            self.hire(f"p{number}", rate)
        self.faults = 0
        self.expiries: set[tuple[str, int]] = set()
        self.kept_out: set[str] = set()

    def hire(self, name: str, rate: float) -> Client:
        one = self.make(name, rate)
        one.peers = self.clients
        self.clients.append(one)
        return one

    def resources(self, client: type[Client]) -> dict[str, Counter]:
        """What is to be had, and how: names that are locks in another way too, or one beside a lock."""
        if self.kind in ("lock", "rlock"):
            return {name: Counter(client.kinds, self.kind) for name in ["a", "b"][: self.world.rng.randint(1, 2)]}
        if self.kind == "all_of":
            return {name: Counter(kind=self.kind) for name in "abc"}
        return {"a": Counter(), self.kind: Counter(kind=self.kind)}

    def run(self, strict: bool = False) -> Result:
        """``strict``: judge also what a store that forgets cannot keep."""
        world = self.world
        self.server.after.append(self.observe)
        for one in self.clients:
            self.employ(one)
        if self.calm:
            self.server.before.append(self.see_that_grants_are_claimed)
        else:
            self.next_fault()
        with seeded_pauses(world.rng):
            world.run(lambda: False, BUSY)
            self.come_to_rest()
        limit = {name: counter.limit for name, counter in self.counters.items()}
        judge = functools.partial(check, exclusive=strict or not self.forgot, in_turn=self.in_turn, limit=limit)
        records = [self.allow_for_the_clock(each) for each in world.history.records]
        found = judge(records, self.results())
        first = first_seen(records, judge, found[0].text) if found else 0.0
        grants = sum(each.op == "acquire" and each.outcome == "granted" for each in records)
        return Result(self.seed, self.kind, found, world.trace, len(records), grants, self.faults, world.now, first)

    def allow_for_the_clock(self, record: Record) -> Record:
        """What a server keeps whose clock was set back, it keeps for so much longer."""
        if record.op not in ("acquire", "over") or record.limit is None:
            return record
        return record._replace(limit=record.limit + self.server.back)

    def employ(self, one: Client) -> None:
        for number in range(self.world.rng.randint(1, 3)):
            one.process.start(one.work(number))
        if self.kind == "election" and one.process.name == "p0":
            one.process.loop.create_task(kinds.watch(one, self.kind))  # until its Locks is closed

    @property
    def in_turn(self) -> bool:
        """Whether whoever waits is to be served in the order of arrival, which tokens show."""
        return self.calm

    def results(self) -> dict[str, Any]:
        found = {name: counter.result() for name, counter in self.counters.items() if counter.kind != "once"}
        for name, counter in self.counters.items():
            found |= {f"{name} {version}": each.result() for version, each in counter.versions.items()}
        return found

    def observe(self) -> None:
        """Ask every lease whether it is valid, and the store whom it has: now, and whenever it lets one expire."""
        for one in self.clients:
            one.observe()
        for name in self.counters:
            self.see_that_who_fits_is_let_in(name)
            for each in self.server.holders(name):
                self.world.history.add("seen", name, ask=json.loads(each.data))
                if (name, each.expires) not in self.expiries:
                    self.expiries.add((name, each.expires))
                    left = (each.expires - self.server.now_us() + 1) / self.server.rate / 1e6
                    self.world.after(left, functools.partial(self.expiry, name, each.expires))

    def expiry(self, name: str, expires: int) -> None:
        """The store lets somebody's lease run out now, unless it was renewed or given back."""
        entry = self.server.entries().get(name)
        for each in entry.holders if entry else []:
            if each.expires == expires:
                self.world.say("server", f"{name} token {each.token} of {each.data} has run out")
        self.observe()

    def see_that_who_fits_is_let_in(self, name: str) -> None:
        """Whoever is first in the queue has no room; else nobody would call it."""
        entry = self.server.entry(name)
        free = entry.limit - sum(each.weight for each in entry.holders)
        if entry.queue and free >= entry.queue[0].weight and entry.queue[0].attempt not in self.kept_out:
            self.kept_out.add(entry.queue[0].attempt)
            what = f"{entry.queue[0].data} is first in the queue, and is not let in though there is room"
            self.world.history.add("left", name, outcome=what)

    def see_that_grants_are_claimed(self) -> None:
        """Without faults a waiter that a release has granted the name knows it at once; who polls, soon."""
        allowed = 0.6 if self.server.pushes == "nothing" else 0.25
        for name, entry in self.server.entries().items():
            for each in entry.holders:
                unclaimed = (self.server.now_us() - each.acquired) / 1e6
                if each.state == GRANTED and unclaimed > allowed:
                    what = f"{each.data} was granted the name and has not learnt it for {unclaimed:.3f} s"
                    self.world.history.add("left", name, outcome=what)

    # Faults.

    def next_fault(self) -> None:
        self.world.after(self.world.rng.expovariate(1 / 8.0), self.fault)

    def fault(self) -> None:
        world, rng = self.world, self.world.rng
        if world.now >= BUSY:
            return
        self.faults += 1
        victim = self.victim()
        kind = rng.random()
        if victim.kinds and rng.random() < 0.2:
            self.operate(victim)
        elif kind < 0.3:
            victim.process.pause(rng.uniform(0.2, 1.8) * rng.choice([1.0, 4.0, 8.0]))
        elif kind < 0.4:
            victim.process.kill()
            self.clients.remove(victim)
            self.employ(self.hire(f"p{len(self.clients) + self.faults}", victim.process.rate))
        elif kind < 0.7:
            ways = rng.choice([(True,), (False,), (True, False)])
            until = world.now + rng.uniform(0.2, 8.0)
            world.say(victim.process.name, f"cut off, {ways}, for {until - world.now:.3f} s")
            for upwards in ways:
                self.network.cuts[victim.process.name, upwards] = until
        elif kind < 0.8:
            seconds = rng.uniform(0.1, 4.0)
            world.say("server", f"paused for {seconds:.3f} s")
            self.server.paused_until = world.now + seconds
        elif kind < 0.9:
            self.server.down_until = world.now + rng.uniform(0.1, 3.0)
            forgets = self.forgetful and rng.random() < 0.5
            if forgets:
                self.server.forget()
                self.forgot = True
            world.say("server", "restarts" + (", and has forgotten everything" if forgets else ""))
        elif self.forgetful:
            self.step_clock(rng.uniform(0.0, 6.0))
            self.forgot = True
        elif rng.random() < 0.5:
            self.step_clock(-rng.uniform(0.0, 3.0))  # which costs time, and nothing else
        else:
            step = int(rng.uniform(-300.0, 300.0) * 1e6)
            world.say("server", f"its wall clock jumps by {step} µs")
            self.server.wall_step_us += step
        self.next_fault()

    def operate(self, victim: Client) -> None:
        """What people do on purpose: a lease is broken, or a process goes out of service."""
        rng = self.world.rng
        names = [name for name, counter in self.counters.items() if counter.kind != "once"]
        if rng.random() < 0.7:
            operator = rng.choice(self.clients)
            operator.process.start(operator.break_lease(rng.choice(names), force=rng.random() < 0.4))
        else:
            victim.process.start(victim.drain())

    def step_clock(self, seconds: float) -> None:
        self.world.say("server", f"its clock jumps by {seconds:.6f} s")
        self.server.step_us += int(seconds * 1e6)
        self.server.back += max(0.0, -seconds)

    def victim(self) -> Client:
        """Whoever holds something, mostly."""
        holding = [one for one in self.clients if any(core.leases for core in one.process.cores)]
        return self.world.rng.choice(holding if holding and self.world.rng.random() < 0.8 else self.clients)

    # The end.

    def come_to_rest(self) -> None:
        """No more faults: work ends, everything is closed, every name can be had, and nothing is left."""
        world = self.world
        self.network.heal()
        world.say("world", "no more faults; come to rest")
        ends = world.now + SETTLE
        for one in self.clients:
            one.stop()
        self.wait(ends, *(task for one in self.clients for task in one.process.tasks))
        self.wait(ends, *(one.process.start(one.locks.close()) for one in self.clients))
        last = self.hire("last", 1.0)
        rested = world.now
        for name in self.counters:
            taken = last.process.start(self.take_last(last, name, rested))
            self.wait(world.now + SETTLE, taken)
        self.wait(world.now + SETTLE, last.process.start(last.locks.close()))
        world.run(lambda: False, world.now + timing.WAITER_TTL)
        self.see_that_nothing_is_left()
        self.observe()
        for one in self.clients:
            one.process.end()

    def see_that_nothing_is_left(self) -> None:
        for entry in self.server.entries().values():
            left = [
                *self.server.holders(entry.name),
                *(each for each in entry.queue if each.expires > self.server.now_us()),
            ]
            for each in left:
                self.world.history.add("left", entry.name, outcome=f"{each.owner} {each.data} in the store")

    async def take_last(self, client: Client, name: str, since: float) -> None:
        if self.counters[name].kind == "group":
            taken = client.locks.group(name).join("last")
        else:
            taken = client.lock(name, ttl=5.0, data="last").acquire(SETTLE - 1)
        async with await taken as lease:
            limit = (
                LONGEST_TTL + timing.WAITER_TTL + 8.0 + self.server.back
            )  # of the dead: their ttl, their places in the queue; a look
            for each in parts(lease):
                held = {"owner": "last", "token": each.token}
                self.world.history.add("took", each.name, invoked=since, limit=limit, **held)

    def wait(self, ends: float, *tasks: Any) -> None:
        self.world.run(lambda: all(task.done() for task in tasks), ends)
        for task in tasks:
            if not task.done():
                self.world.history.add("left", "-", outcome=f"{task!r} has not ended")
            elif not task.cancelled() and task.exception() is not None:
                self.world.history.add("left", "-", outcome=f"{task.get_coro()} raised {task.exception()!r}")


@contextmanager
def seeded_pauses(rng: random.Random) -> Any:
    """The jitter of polling comes from the seed too; and the garbage collector does not call at random moments.

    Marks of what was done once move from the first on."""
    pauses, most_marks = timing.pauses, archive.MOST_MARKS
    timing.pauses = functools.partial(pauses, rng=rng)
    archive.MOST_MARKS = 0
    log = logging.getLogger("leasehold")
    level = log.level
    log.setLevel(logging.CRITICAL)
    gc.disable()
    try:
        yield
    finally:
        timing.pauses, archive.MOST_MARKS = pauses, most_marks
        log.setLevel(level)
        gc.enable()


def simulate(seed: int, client: type[Client] = Client, kind: type[Simulation] = Simulation) -> Result:
    return played(kind(seed, client))


def played(simulation: Simulation) -> Result:
    seed = simulation.seed
    try:
        return simulation.run()
    except BaseException as error:  # also a test's timeout: the seed has to be known all the same
        trace = simulation.world.trace
        ended = f"simulation of seed {seed} did not end: {type(error).__name__}"
        error.add_note("\n".join([ended, replay(seed), f"the last of {len(trace)} lines:", *told(trace[-30:])]))
        for process in list(simulation.world.processes):
            process.end()
        raise


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[-1]) + 1):
        began = time.process_time()
        result = simulate(number)
        took = time.process_time() - began
        counts = f"{result.kind}, {result.grants} grants, {result.faults} faults, {len(result.violations)} violations"
        print(f"seed {number}: {counts}, {result.simulated / took:.0f} × real time (by CPU time)")
        if result.violations or len(sys.argv) == 2:
            print(result.story(None if len(sys.argv) == 2 else 30))
        if result.violations:
            sys.exit(1)
