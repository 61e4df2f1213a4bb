"""What the processes of a simulation do: take leases of a few names in all sorts of ways, and write under them.

What is not a lock by itself (once, election, group) is in :mod:`simulation.kinds`."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections import deque
from typing import Any

from leasehold import AcquireTimeout, LeaseLost, ShuttingDown, StoreError, StoreUnavailable, aio
from leasehold.core import timing
from leasehold.core.claim import EXPIRED, OVERHELD, SILENT, TAKEN
from leasehold.core.drain import UNWIND
from leasehold.testing.history import LATE
from leasehold.testing.inside import acquired, core, deadline, parts, reentrant, spec
from leasehold.testing.virtual import VirtualRegistry

from . import kinds
from .resource import Counter
from .store import Driver, JointStore, Network, Server, Store
from .world import NEVER, Process, World

LONGEST_TTL = 12.0
LATEST = 12.0
"""How late a message may be: as long as the longest cut, and a while."""
AT_ONCE = 1.0
"""How long what was given up may be held where nothing goes wrong."""
BY_CLOCK = (EXPIRED, OVERHELD, SILENT)
"""Reasons of loss that come with the deadline; any other comes when it is learnt."""


class Client:
    """One process with one ``Locks`` and some workers."""

    kinds = True
    """Whether it can do more than take locks, and fences what it writes."""

    def __init__(
        self, world: World, name: str, rate: float, network: Network, counters: dict[str, Counter], calm: bool
    ) -> None:
        self.world = world
        self.process = Process(world, name, rate)
        self.network = network
        self.server: Server = network.server
        self.counters = counters
        self.calm = calm
        self.stopping = False
        self.known: dict[tuple[str, int], weakref.ref[Any]] = {}
        """Every lease that somebody may still ask, by its name and token."""
        self.hearing: dict[tuple[str, int], float | None] = {}
        """Those whose loss has to be told, and since when it has not been."""
        self.leaving: set[tuple[str, int]] = set()
        """Parts of a lease that is released: one is given back after the other, and what becomes of them meanwhile, its
        holder, who sees only the whole, is not told."""
        self.given_back: deque[Any] = deque(maxlen=3)
        self.membership: kinds.Membership | None = None
        self.peers: list[Client] = [self]
        """Who may be handed a lease."""
        self.by_hand: set[tuple[str, int]] = set()
        """What was renewed by its holder, whatever ``max_hold`` and beats are."""
        self.drained: set[Any] = set()
        """Registries that are out of service."""
        self.limits: dict[str, dict[str, float]] = {}
        """By ask, ``max_hold`` and ``beat_every`` of its lease."""
        self.beats: dict[str, float] = {}
        """By ask, when its holder has last said that it makes progress, by its process's clock."""
        self.locks = self.connect(network)

    def connect(self, network: Network) -> Any:
        driver = Driver(self.process, network)
        options = {"namespace": "", "owner": self.process.name, "kinds": None, "defaults": {}}
        store = (JointStore if network.joint else Store)()
        registry = VirtualRegistry(store, driver, self.process.local, **options)
        self.process.cores.append(registry)
        return aio.Locks(registry)

    def stop(self) -> None:
        """No new leases; who waits gives up."""
        self.stopping = True

    async def work(self, number: int) -> None:
        rng = self.world.rng
        asks = 0
        while not self.stopping:
            await asyncio.sleep(rng.expovariate(1 / 3.0))
            if self.stopping:
                return
            asks += 1
            ask = f"{self.process.name}.{number}.{asks}"
            name = rng.choice(list(self.counters))
            job = kinds.JOBS.get(self.counters[name].kind)
            if job is not None:
                await job(self, name, ask)
                continue
            lease = await self.take(name, ask)
            if lease is not None:
                try:
                    await self.use(lease)
                except LeaseLost as error:
                    self.world.say(ask, f"LeaseLost: {error}")
                lease = None

    def lock(self, name: str, **options: Any) -> Any:
        """Something that takes the name, as its kind has it; mostly what is simplest."""
        rng, counter = self.world.rng, self.counters[name]
        special = counter.kind != "lock" and rng.random() < 0.6
        match counter.kind:
            case "semaphore":
                return self.locks.semaphore(name, limit=counter.limit, **options)
            case "rwlock":
                options.pop("fair", None)
                both = self.locks.rwlock(name, **options)
                return both.read() if special else both.write()
            case "rlock" if special:
                return self.locks.rlock(name, **options)
            case "all_of" if special:
                return self.locks.all_of(*rng.sample(sorted(self.counters), rng.randint(2, 3)), **options)
        return self.locks.lock(name, **options)

    async def take(self, name: str, ask: str) -> Any:
        rng = self.world.rng
        ttl = rng.choice([2.0, 4.0, 6.0, LONGEST_TTL])
        options: dict[str, Any] = {"ttl": ttl, "data": ask, "poll": (0.05, 0.4)}
        options["on_lost"] = rng.choice([None, "log", "log", "raise", lambda lease: None])
        if rng.random() < 0.1:
            options["max_hold"] = rng.uniform(1.0, 10.0)
        elif rng.random() < 0.1:
            options["renew"] = False
        elif rng.random() < 0.1:
            options["beat_every"] = rng.uniform(0.5, 4.0)
        if rng.random() < 0.05:
            options["min_hold"] = 0.3
        if rng.random() < 0.1:
            options["fair"] = False
        self.limits[ask] = {each: options[each] for each in ("max_hold", "beat_every") if each in options}
        timeout = rng.choice([None, 0.0, rng.uniform(0.1, 20.0)])
        patience = self.patience()
        lock = self.lock(name, **options)
        self.world.say(ask, f"acquire {lock.name} ttl={ttl:g} timeout={timeout} cancelled after {patience:.3f}")
        invoked = self.world.now
        lease = await self.ask(lambda: lock.acquire(timeout), lock.name, ask, ttl, patience)
        if lease is not None and spec(lock).fair and spec(lock).shape != "all_of":  # which begins anew if one was lost
            placed = self.server.placed[lock.name, json.dumps(ask)]
            self.world.history.add("queued", lock.name, ask=ask, invoked=invoked, returned=placed)
        return lease

    async def ask(self, acquire: Any, names: str, ask: str, ttl: float, patience: float) -> Any:
        """The lease that this brings, if it does; either is noted."""
        outcome, lease, invoked = "unknown", None, self.world.now
        try:
            async with asyncio.timeout(patience):
                lease = await acquire()
                outcome = "granted"
        except (AcquireTimeout, LeaseLost):  # the latter: nothing is there to be taken over
            outcome = "busy"
        except TimeoutError:
            outcome = "cancelled"
            if lease is not None:  # it came in the same instant
                await self.give_back(lease)
                lease = None
        except (StoreUnavailable, ShuttingDown) as error:
            self.world.say(ask, f"{type(error).__name__}: {error}")
        if lease is not None:
            for part in parts(lease):
                self.granted(part, ask, invoked)
            return lease
        # A request may be this late, then hold for its ttl, or wait its time in the queue and be granted a first term.
        settled = AT_ONCE if self.calm else LATEST + max(ttl, timing.WAITER_TTL + timing.FIRST_TERM)
        for each in names.split(", "):
            held = {"owner": ask, "invoked": invoked, "outcome": outcome, "ask": ask, "limit": settled}
            self.world.history.add("acquire", each, **held)
        self.world.say(ask, f"{outcome} {names}")
        return None

    def patience(self) -> float:
        rng = self.world.rng
        return rng.expovariate(1 / 10.0) if rng.random() < 0.3 else 60.0

    def granted(self, lease: Any, ask: str, invoked: float, subject: str = "") -> None:
        """It is held; ``subject`` is what it is held for, where that is not its name."""
        if spec(lease).limit == 1:
            invoked = self.process.world_time(acquired(lease))  # what granted it was sent then, after a wait perhaps
            if (
                self.server.step_us
            ):  # by a clock that has jumped it may think so of a time when it had long been granted
                invoked = min(invoked, self.server.granted.get((lease.name, lease.token), self.world.now))
        if core(lease) in self.drained:
            self.left(lease.name, f"{ask} was granted it by a Locks that was drained")
        held = {"owner": ask, "token": lease.token, "ask": ask, "weight": spec(lease).weight}
        self.world.history.add("acquire", subject or lease.name, outcome="granted", invoked=invoked, **held)
        self.world.say(ask, f"granted {lease.name} token {lease.token}")

    async def use(self, lease: Any) -> None:
        """The body: check and write, several times; then release, or forget."""
        rng, ask = self.world.rng, lease.data
        self.hear(lease, ask)
        if rng.random() < 0.03:  # whoever had it has forgotten it; it is given back all the same
            if len(parts(lease)) > 1:  # the keeper may still be about a part, when there is nobody left to be told
                for part in parts(lease):
                    self.hearing.pop((part.name, part.token), None)
            return
        try:
            async with lease:
                for _ in range(rng.randint(1, 5)):
                    if not self.check(lease):
                        break
                    if lease.exclusive and not all([await self.write(part) for part in parts(lease)]):
                        break
                    await asyncio.sleep(rng.expovariate(1 / 1.5))
                    if rng.random() < 0.85:  # else it has no need to, or is found out
                        lease.beat()
                        self.beats[ask] = self.process.local()
                    if rng.random() < 0.1:
                        await self.renew(lease)
                    if reentrant(lease) and core(lease) is core(self.locks) and rng.random() < 0.3:
                        await self.enter_again(lease)
                if self.kinds and len(parts(lease)) == 1 and not reentrant(lease) and rng.random() < 0.08:
                    await self.hand_over(lease)
                elif (
                    self.counters.get(lease.name, Counter()).kind == "rwlock" and lease.exclusive and rng.random() < 0.3
                ):
                    await self.downgrade(lease)
                else:
                    await self.give_back(lease)
        except asyncio.CancelledError:
            self.world.say(ask, "cancelled in its body")
            raise

    async def write(self, lease: Any, counter: Counter | None = None, subject: str = "") -> bool:
        """Read, think, and write under the lease. False when the resource has seen a newer one."""
        rng, ask, token = self.world.rng, lease.data, lease.token
        counter, name = counter or self.counters[lease.name], subject or lease.name
        if not counter.admit(token):
            self.world.history.add("write", name, owner=ask, token=token, outcome="refused")
            return False
        value = counter.value
        if not self.calm and rng.random() < 0.03:
            self.process.block(rng.uniform(0.1, 1.5) * lease.ttl)
        await asyncio.sleep(rng.expovariate(1 / 0.02))  # between the check and the write
        written = counter.write(value + 1, token, ask)
        outcome = "accepted" if written else "refused"
        self.world.history.add("write", name, owner=ask, token=token, outcome=outcome)
        self.world.say(ask, f"write to {name} with token {token}: {outcome}")
        return written

    def check(self, lease: Any) -> bool:
        valid: bool = lease.valid
        for part in parts(lease):
            if self.note_check(part) < valid:
                self.left(lease.name, f"{lease.data} is told that all are valid; {part.name} is not")
        return valid

    def note_check(self, lease: Any) -> bool:
        valid: bool = lease.valid
        stored = self.server.stored(lease.name, lease.token)
        held = {"owner": lease.data, "token": lease.token, "stored": stored}
        self.world.history.add("check", lease.name, outcome="valid" if valid else "invalid", **held)
        if valid and self.process.local() > self.renewable_until(lease) + lease.ttl:
            self.left(lease.name, f"{lease.data} holds token {lease.token} though it was not to be renewed any more")
        return valid

    def renewable_until(self, lease: Any) -> float:
        """Until when it may be renewed, by its process's clock: it has been held for long, or its body is silent."""
        limits = self.limits.get(lease.data)
        if not limits or (lease.name, lease.token) in self.by_hand:
            return NEVER
        began = acquired(lease)
        held = began + limits.get("max_hold", NEVER)
        silent = max(began, self.beats.get(lease.data, began)) + limits.get("beat_every", NEVER)
        return min(held, silent)

    async def renew(self, lease: Any) -> None:
        invoked, outcome = self.world.now, "unknown"
        self.by_hand |= {(part.name, part.token) for part in parts(lease)}
        try:
            await lease.renew()
            outcome = "renewed"
        except LeaseLost:
            outcome = "refused" if len(parts(lease)) == 1 else "unknown"  # which of several it was is not said
        except StoreError:
            pass
        for part in parts(lease):
            held = {"owner": lease.data, "token": part.token, "invoked": invoked}
            self.world.history.add("renew", part.name, outcome=outcome, **held)

    async def enter_again(self, lease: Any) -> None:
        """Re-entry: a handle of its own on the same holding, which goes on when that one is released."""
        again = await self.locks.rlock(lease.name, data=lease.data).acquire()
        if again.token != lease.token:
            self.left(lease.name, f"{lease.data} entered again, with token {again.token} for {lease.token}")
        await asyncio.sleep(self.world.rng.expovariate(1 / 0.5))
        trusted = self.check(again)
        if await again.release() != trusted or self.check(lease) != trusted:
            self.left(lease.name, f"{lease.data} has left an inner entry, and the outer one has changed")

    async def downgrade(self, lease: Any) -> None:
        """A writer becomes a reader, with nobody in between."""
        invoked, ask = self.world.now, lease.data
        released = {"owner": ask, "token": lease.token, "invoked": invoked}
        try:
            reader = await lease.downgrade()
        except (LeaseLost, StoreError, AcquireTimeout) as error:
            self.world.history.add("release", lease.name, outcome="unknown", **released)
            self.world.say(ask, f"no downgrade: {error}")
            return
        self.world.history.add("release", lease.name, outcome="released", **released)
        self.granted(reader, ask, invoked)
        self.hear(reader, ask)
        async with reader:
            self.check(reader)
            await asyncio.sleep(self.world.rng.expovariate(1 / 1.5))
            self.check(reader)
            await self.give_back(reader)

    async def hand_over(self, lease: Any) -> None:
        """Another may take it from now on; perhaps two are told, or nobody. Its own trust has ended."""
        world, ask = self.world, lease.data
        try:
            text = await lease.transfer()
        except (LeaseLost, StoreError) as error:
            world.say(ask, f"no transfer: {error}")
            await self.give_back(lease)
            return
        world.say(ask, f"offers {lease.name} token {lease.token}")
        self.hearing.pop((lease.name, lease.token), None)  # it is told when it was taken, if it is still here then
        self.note_check(lease)
        world.history.add("over", lease.name, owner=ask, ask=ask, limit=LATEST + LONGEST_TTL)
        for number in range(world.rng.choice([0, 1, 1, 1, 2])):
            heir = world.rng.choice(
                [each for each in self.peers if not each.process.dead and not each.stopping] or [self]
            )
            heir.process.start(heir.inherit(lease.name, text, f"{ask}.{number}", lease.ttl))
        await asyncio.sleep(world.rng.choice([0.0, 0.5]))

    async def inherit(self, name: str, text: str, ask: str, ttl: float) -> None:
        """Take over what another has offered, if it is still there."""
        self.world.say(ask, f"accepts {name}")
        lease = await self.ask(lambda: self.locks.accept(text, data=ask), name, ask, ttl, self.patience())
        if lease is not None:
            try:
                await self.use(lease)
            except LeaseLost as error:
                self.world.say(ask, f"LeaseLost: {error}")

    async def break_lease(self, name: str, force: bool) -> None:
        """An operator takes it from whoever holds it. (What the server did is noted there.)"""
        try:
            broken = await self.locks.break_lease(name, force)
        except (StoreError, ShuttingDown) as error:
            broken = error
        self.world.say(self.process.name, f"break of {name}{' by force' if force else ''}: {broken}")

    async def drain(self) -> None:
        """Go out of service, and begin anew."""
        world, locks, began = self.world, self.locks, self.world.now
        grace = world.rng.choice([0.0, world.rng.uniform(0.0, 8.0)])
        if core(locks).draining is not None:
            return
        world.say(self.process.name, f"drains, with {grace:.3f} s of grace")
        late = await locks.drain(grace)
        world.say(self.process.name, f"is drained; {late} had to be given up")
        self.drained.add(core(locks))
        allowed = grace * 1.01 + UNWIND + 2 * timing.CALL_LIMIT + self.process.stalled(began)
        world.history.add("took", "-", owner=self.process.name, outcome="drained", invoked=began, limit=allowed)
        for state in core(locks).held():
            if state.remaining(core(locks).now()):
                self.left(state.name, f"{state.spec.data} holds token {state.token} of a Locks that was drained")
        await locks.close()
        self.membership = None
        self.locks = self.connect(self.network)

    async def give_back(self, lease: Any) -> None:
        invoked, outcome = self.world.now, "unknown"
        self.given_back.append(lease)  # somebody may ask it later
        several = {(part.name, part.token) for part in parts(lease)} if len(parts(lease)) > 1 else set()
        self.leaving |= several
        try:
            outcome = "released" if await lease.release() else "refused"
        except StoreError:
            pass
        member = self.kinds and lease.name in self.counters and self.counters[lease.name].kind == "group"
        if member and outcome == "refused" and lease.lost_reason is None and core(lease).draining is not None:
            return  # it has left with the drain
        for part in parts(lease):
            held = {"owner": lease.data, "token": part.token, "invoked": invoked}
            fine = outcome == "refused" and several and part.lost_reason is None
            self.world.history.add("release", part.name, outcome="released" if fine else outcome, **held)
        self.world.say(lease.data, f"release of {lease.name}: {outcome}")

    # Losses.

    def hear(self, lease: Any, ask: str) -> None:
        """Have its loss told; whether it is will be seen."""
        for part in parts(lease):
            self.hearing[part.name, part.token] = None
        lease.on_lost(lambda lost: self.told(lost, ask))

    def told(self, lease: Any, ask: str) -> None:
        """A loss is told: it may come as late as the loop was not running, and no later."""
        for part in parts(lease):
            self.hearing.pop((part.name, part.token), None)
            # What the store would not take back is known by its answer, also if a part of it ran out meanwhile.
            deadline = self.world.now if lease.lost_reason == TAKEN else self.lost_since(part)
            late = LATE + self.process.stalled(deadline)
            held = {"owner": ask, "token": part.token, "invoked": deadline, "limit": late}
            self.world.history.add("lost", part.name, outcome=part.lost_reason or "", **held)
        self.world.say(ask, f"told that {lease.name} is lost: {lease.lost_reason}")

    def lost_since(self, lease: Any) -> float:
        now = self.world.now
        return min(self.process.world_time(deadline(lease)), now) if lease.lost_reason in BY_CLOCK else now

    def observe(self) -> None:
        """Whatever says now that it is valid, though it may have nobody to ask it; and what has ended, for ever."""
        if self.process.dead:
            return
        held: set[tuple[str, int]] = set()
        for registry in self.process.cores:
            for lease in [state.handle for state in registry.held()]:
                held.add((lease.name, lease.token))
                if (lease.name, lease.token) not in self.leaving:
                    self.known.setdefault((lease.name, lease.token), weakref.ref(lease))
                    self.note_check(lease)
        for holding, ref in list(self.known.items()):
            if (lease := ref()) is None:
                del self.known[holding]
                self.hearing.pop(holding, None)
                continue
            if holding not in held and lease.valid:
                self.note_check(lease)
            if holding in self.hearing and holding not in self.leaving and lease.lost_reason is not None:
                self.see_that_it_is_told(lease)

    def see_that_it_is_told(self, lease: Any) -> None:
        holding, now = (lease.name, lease.token), self.world.now
        since = self.hearing[holding]
        if since is None:
            since = self.hearing[holding] = self.lost_since(lease)
        if now - since > LATE + self.process.stalled(since):
            del self.hearing[holding]
            what = f"{lease.data} was not told within {now - since:.3f} s that token {lease.token} is lost"
            self.left(lease.name, f"{what}: {lease.lost_reason}")

    def left(self, name: str, what: str) -> None:
        self.world.history.add("left", name, outcome=what)
