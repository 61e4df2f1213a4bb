"""Making chaos: workers that are stopped, killed and cut off while they hold a lease, and servers that are killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import leasehold
from leasehold.core import clock
from leasehold.testing.history import History, Record, load
from servers.clock import FakeClock
from servers.process import wait_until
from servers.proxy import Proxy

from .resource import Counters
from .stores import TTL, Goals, setup_of
from .watching import PLACES, Watch, see_that_nobody_waits

TESTS = Path(__file__).parents[1]
STEP = 300.0
"""How far a server's wall clock is set ahead or back."""
HOUR = 3600.0
"""The same of a worker's."""
SLOW = 20.0
"""How long it may take until all is at rest, beyond a ttl: the dead may stand in the queue for 15 s."""
COUNTED = {
    "pause": "pauses",
    "kill": "kills",
    "cut": "cuts",
    "wall": "client_clock_steps",
    "server": "server_kills",
    "clock": "clock_steps",
}
"""Faults, and what of the goals each brings nearer."""


class Plan(NamedTuple):
    """What is to happen. Each worker contends for one name, so that what is done to another's holder does not keep it
    from its own."""

    names: int = 2
    workers: int = 5
    clients: int = 1
    """Threads of each worker. Where there are several, they contend for all names."""
    every: float = 1.0
    """Seconds between faults on average; 0: none."""
    hits: int = 0
    """It goes on until so many holders were stopped or killed, however busy the machine is."""
    goals: Goals | None = None
    """Then no more faults than these, those first that are to be seen undisturbed; and no longer than they take."""


CALM = Plan(clients=10, every=0.0)
"""Fifty clients and no faults."""
FULL = Plan(names=3, workers=9, every=0.1)


class Worker:
    """One process with a wall clock and a way to each server of its own."""

    def __init__(self, chaos: Chaos, number: int, home: str) -> None:
        self.name = f"w{number}"
        self.home = home
        self.wall = chaos.folder / f"{self.name}.wall"
        self.set_clock(0.0)
        url = chaos.url
        self.proxies: list[Proxy] = []
        for member in chaos.members if chaos.setup.cuts else []:
            proxy = Proxy(member.port).start()
            self.proxies.append(proxy)
            url = url.replace(f":{member.port}", f":{proxy.port}")
        names = chaos.names if chaos.plan.clients > 1 else [home]
        config = {"me": self.name, "folder": str(chaos.folder), "url": url, "names": names, "ttl": TTL}
        config["clients"] = chaos.plan.clients
        self.process = subprocess.Popen(chaos.command(config), stdin=subprocess.PIPE, cwd=TESTS)
        self.free_at = 0.0
        """Until then a fault of its own goes on."""

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.close()

    def set_clock(self, ahead: float) -> None:
        self.wall.write_text(f"{ahead:<20.6f}")

    def cut(self, mode: Callable[[Proxy], None]) -> None:
        for each in self.proxies:
            mode(each)

    def close(self) -> None:
        while self.proxies:
            self.proxies.pop().close()


class Chaos:
    watched = True
    """Whether somebody looks, meanwhile and at the end, for what is left in the store."""

    def __init__(self, store: str, folder: Path, seed: int, plan: Plan) -> None:
        self.store = store
        self.setup = setup_of(store)
        self.folder = folder
        self.plan = plan
        self.names = list("abcdef"[: plan.names])
        self.rng = random.Random(seed)
        self.clock = FakeClock() if self.setup.by_clock else None
        self.server: Any = None
        self.url = "naive" if store == "naive" else f"sqlite:///{folder}/leases.db"
        if self.clock is not None and self.setup.by_clock is not None:
            self.server = self.setup.by_clock(self.clock)
        elif self.setup.make is not None:
            self.server = self.setup.make()
        if self.server is not None:
            self.server.start()
            self.url = self.server.url
            if self.setup.options:
                self.url = self.url.partition("?")[0] + "?" + self.setup.options
        self.members: list[Any] = getattr(self.server, "members", [self.server] if self.server is not None else [])
        self.history = History(folder / "chaos.history", now=clock.now)
        Counters(folder / "resource.db").create(self.names)
        for name in self.names:
            (folder / f"{name}.holder").write_text(" " * 60)
            (folder / f"{name}.want").write_text(" " * 4)
        self.watch = Watch(self.url, self.history) if self.watched and self.url != "naive" else None
        self.number = 0
        self.workers: list[Worker] = []
        self.later: list[tuple[float, Any]] = []
        self.made: dict[str, int] = Counter()
        self.tally = Tally(folder)
        self.planned: dict[str, tuple[str, float]] = {}
        """What happens next to whoever holds a name, and until when somebody is waited for who holds it for long."""
        self.wanted: dict[str, str] = {}
        self.due_at: dict[str, float] = {}
        self.quiet_until = 0.0
        """Until then a takeover is to be seen undisturbed: nothing happens that is felt by all."""
        self.server_at = 0.0
        self.down: list[Any] = []
        """Servers that are to be seen again before the next is killed."""
        self.back_at = 0
        """How many grants there were when they were."""

    def run(self, seconds: float) -> list[Record]:
        """Make chaos for so long, or until there was enough of it; the history of it."""
        try:
            for number in range(self.plan.workers):
                self.hire(self.names[number % len(self.names)])
            wait_until(lambda: self.tally("granted") > 0, "the workers to begin", 60)
            if self.watch is not None:
                self.watch.start()
            began = clock.now()
            self.due_at = dict.fromkeys(self.names, began + 2.0)
            self.server_at = began + self.until_the_next_server()
            while (clock.now() < began + seconds or self.lacks_hits()) and not self.enough():
                now = clock.now()
                for due in [each for each in self.later if each[0] <= now]:
                    self.later.remove(due)
                    due[1]()
                self.miss_the_dead()
                if self.plan.every:
                    self.trouble_servers(now)
                    for name in self.names:
                        if now >= self.due_at[name]:
                            self.trouble(name, now)
                time.sleep(0.01)
            self.come_to_rest()
        finally:
            for each in self.workers:
                if each.process.poll() is None:
                    each.kill()
            if self.watch is not None:
                self.watch.close()
            if self.server is not None:
                self.server.close()
            self.history.close()
        return load(self.folder.glob("*.history"))

    def command(self, config: dict[str, Any]) -> list[str]:
        """What a worker runs."""
        return [sys.executable, "-m", "chaos.worker", json.dumps(config)]

    def hire(self, home: str) -> None:
        self.number += 1
        self.workers.append(Worker(self, self.number, home))

    def miss_the_dead(self) -> None:
        """A worker that ends by itself is a violation, and is replaced."""
        for each in [each for each in self.workers if each.process.poll() is not None]:
            self.history.add("left", "-", outcome=f"{each.name} died with {each.process.returncode}")
            each.kill()
            self.workers.remove(each)
            self.hire(each.home)

    # What is to happen.

    def missing(self, kind: str) -> float:
        """How much more of it there is to be; where there are no goals, how likely it is."""
        possible = {
            "cut": self.setup.cuts and bool(self.members),
            "server": bool(self.members),
            "clock": self.clock is not None,
        }
        if not possible.get(kind, True):
            return 0.0
        if self.plan.goals is None:
            return {"pause": 6.0, "kill": 2.0, "cut": 3.0, "wall": 1.0, "server": 0.8, "clock": 1.0}[kind]
        goal: int = getattr(self.plan.goals, COUNTED[kind])
        return max(0, goal + goal // 20 - self.made[kind])  # some come a moment too late, and hit nobody

    def lacks_hits(self) -> bool:
        return self.made["pause"] + self.made["kill"] < self.plan.hits

    def enough(self) -> bool:
        goals = self.plan.goals
        if goals is None or any(map(self.missing, COUNTED)):
            return False
        return self.tally("accepted") >= goals.writes and self.tally("granted") >= goals.grants_of_50

    def choose(self) -> str:
        """What happens next to a holder. With goals: kills before all that may disturb a takeover."""
        kinds = ["pause", "kill", "wall"]
        if self.plan.goals is None or not self.missing("kill"):
            kinds.append("cut")
        chances = [self.missing(kind) for kind in kinds]
        return self.rng.choices(kinds, chances)[0] if any(chances) else ""

    def trouble(self, name: str, now: float) -> None:
        """Do what is planned to whoever holds the name, if there is one to do it to."""
        if name not in self.planned:
            self.planned[name] = (self.choose(), now + 3.0)
        kind, patient_until = self.planned[name]
        if not kind or (kind == "cut" and now < self.quiet_until):
            del self.planned[name]
            self.due_at[name] = now + 0.2
            return
        long = kind in ("kill", "cut")
        self.want(name, "long" if long else "")
        found = self.holder(name, long and now < patient_until)
        if found is not None:
            lasts = self.fault(kind, *found)
            gap = self.rng.uniform(0.5, 1.5) * self.plan.every * len(self.names)
            self.due_at[name] = clock.now() + max(lasts + 0.2, gap)
            del self.planned[name]
            self.want(name, "")

    def want(self, name: str, body: str) -> None:
        """Have whoever is granted the name next hold it for long, or not."""
        if self.wanted.get(name, "") != body:
            self.wanted[name] = body
            with (self.folder / f"{name}.want").open("r+") as file:
                file.write(body.ljust(4))

    def holder(self, name: str, long: bool) -> tuple[Worker, str, int] | None:
        """Whoever holds the name now, is not in trouble yet, and (long) will hold it for some time."""
        who, token, body = [*(self.folder / f"{name}.holder").read_text().split(), "", "", ""][:3]
        for each in self.workers:
            if each.name == who and each.free_at <= clock.now() and body in ("long", "" if long else "short"):
                return each, name, int(token)
        return None

    def fault(self, kind: str, victim: Worker, name: str, token: int) -> float:
        """Do it. How long nothing else is to happen to whoever has the name."""
        seconds, began, rest = self.rng.uniform(0.8, 1.8) * TTL, clock.now(), 0.0
        if kind == "pause":
            victim.process.send_signal(signal.SIGSTOP)
            self.after(seconds, lambda: self.resume(victim))
        elif kind == "kill":
            victim.kill()
            self.workers.remove(victim)
            self.hire(victim.home)
            rest = self.setup.rest
            self.quiet_until = began + rest
        elif kind == "cut":
            late = self.rng.uniform(0.1, 2.0)
            modes: list[Callable[[Proxy], None]] = [
                Proxy.blackhole,
                Proxy.reset,
                lambda proxy: proxy.only("to_server"),
                lambda proxy: proxy.only("to_client"),
                lambda proxy: proxy.delay(late),
            ]
            victim.cut(self.rng.choice(modes))
            self.after(seconds, lambda: victim.cut(Proxy.all_well))
        elif kind == "wall":
            victim.set_clock(self.rng.uniform(-HOUR, HOUR))
            seconds = 0.0
        victim.free_at = clock.now() + seconds + 0.2
        self.note(kind, began, seconds, name, owner=victim.name, token=token)
        return max(seconds, rest)

    def note(self, kind: str, began: float, lasts: float, name: str = "-", **who: Any) -> None:
        self.made[kind] += 1
        self.history.add("fault", name, outcome=kind, limit=lasts, invoked=began, returned=began, **who)

    def trouble_servers(self, now: float) -> None:
        """Kill one, or set its clock, when the last time is over."""
        if now < max(self.server_at, self.quiet_until) or (self.plan.goals is not None and self.missing("kill")):
            return
        kinds = ["server", "clock"]
        chances = [self.missing(kind) for kind in kinds]
        if not any(chances) or not self.are_back(now):
            return
        if self.rng.choices(kinds, chances)[0] == "clock" and self.clock is not None:
            step = self.rng.uniform(-STEP, STEP)
            self.clock.step(step)
            self.note("clock", now, step)
        elif self.kill_servers():
            self.note("server", now, 0.0)
        self.server_at = now + self.until_the_next_server()

    def until_the_next_server(self) -> float:
        return 2.0 if self.plan.goals is not None else self.rng.uniform(10.0, 30.0) * self.plan.every

    def are_back(self, now: float) -> bool:
        """Whether those that were killed work again, and somebody has been granted something since."""
        if self.down and all(each.answers(0.2) for each in self.down) and (len(self.members) == 1 or self.leaders()):
            self.down = []
            self.back_at = self.tally("granted")
            self.server_at = now + 1.0
            return False
        return not self.down and self.tally("granted") > self.back_at

    def leaders(self) -> list[Any]:
        return [each for each in self.members if self.server.leads(each)] if len(self.members) > 1 else self.members

    def kill_servers(self) -> bool:
        """The one that there is, or the one that leads, or (of a quorum) some, which come back after a while."""
        leaders = self.leaders()
        if not leaders:
            return False
        later = len(self.members) > 1 and not self.setup.amnesia
        self.down = self.rng.sample(leaders, min(len(leaders), self.setup.together))
        for member in self.down:
            member.kill()
            self.after(self.rng.uniform(0.5, 3.0) if later else 0.0, member.launch)
        return True

    def resume(self, worker: Worker) -> None:
        worker.process.send_signal(signal.SIGCONT)
        self.history.add("fault", "-", owner=worker.name, outcome="resume")

    def after(self, seconds: float, do: Any) -> None:
        self.later.append((clock.now() + seconds, do))

    def come_to_rest(self) -> None:
        self.history.add("fault", "-", outcome="rest")
        for _, do in self.later:
            do()
        for each in self.members:
            each.wait_ready()
        for each in self.workers:
            code = each.end()
            if code:
                self.history.add("left", "-", outcome=f"{each.name} ended with {code}")
        if self.watch is not None:
            self.see_what_is_left()

    def see_what_is_left(self) -> None:
        """Each name can be had, and nobody holds or waits for one."""
        if self.clock is not None:
            self.clock.step(3 * STEP)  # what was granted when the clock was ahead would stand until it is so again
        rested = clock.now()
        with leasehold.connect(self.url, namespace="chaos", ttl=TTL) as locks:
            for name in self.names:
                taken = locks.lock(name).try_acquire(timeout=30 + SLOW)
                token = taken.token if taken is not None else 0
                self.history.add("took", name, owner="last", token=token, invoked=rested, limit=TTL + SLOW)
                if taken is not None:
                    see_that_nobody_waits(locks, name, self.history, PLACES)
                    taken.release()
            for each in locks.leases():
                self.history.add("left", each.name, outcome=f"{each.owner} still holds it with token {each.token}")


class Tally:
    """How often a word is in the histories of the workers so far, looked up once in a while."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read: dict[Path, int] = Counter()
        self.counts: dict[str, int] = Counter()
        self.looked = 0.0

    def __call__(self, word: str) -> int:
        if clock.now() - self.looked > 0.3:
            self.looked = clock.now()
            for path in self.folder.glob("w*.history"):
                with path.open("rb") as file:
                    file.seek(self.read[path])
                    text = file.read()
                self.read[path] += len(text)
                for each in ("accepted", "granted"):
                    self.counts[each] += text.count(f'"{each}"'.encode())
        return self.counts[word]
