"""What the processes of a simulation do with kinds that are more than a lock: each a job that a worker does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from leasehold import AcquireTimeout, LeaseLost, ShuttingDown, StoreUnavailable, aio
from leasehold.core.claim import EXPIRED
from leasehold.testing.inside import deadline

from .resource import Counter

if TYPE_CHECKING:
    from .workload import Client

AGE = 12.0
"""How long a version of the work that is done once is the newest, in seconds of the world."""
BEAT = 3.0
GIVEN_UP = (AcquireTimeout, LeaseLost, ShuttingDown, StoreUnavailable, TimeoutError)


async def once(client: Client, name: str, ask: str) -> None:
    """Do the work of the present version or of an old one, or hear of another's having done so.

    Everybody hears the same, and what was done stays done, also when its details are no longer kept."""
    world, rng = client.world, client.world.rng
    version = max(0, int(world.now // AGE) - rng.choice([0, 0, 0, 1, 3]))
    subject, effect = f"{name} {version}", client.counters[name].versions.setdefault(version, Counter())
    begun: set[int] = set()

    async def work() -> None:
        lease: Any = aio.current()
        if lease.token not in begun:  # whoever tries again does so with the same lease
            begun.add(lease.token)
            client.granted(lease, ask, world.now, subject)
        for _ in range(rng.randint(1, 3)):
            client.check(lease)
            if not await client.write(lease, effect, subject):
                raise RuntimeError("overtaken")
            await asyncio.sleep(rng.expovariate(1 / 1.5))
        if rng.random() < 0.15:
            raise ArithmeticError("the work itself")

    options = {"ttl": rng.choice([2.0, 4.0, 12.0]), "data": ask, "retry_by": rng.choice(["any", "same"])}
    options |= {"keep": rng.choice([1, 2, 100]), "check": False}
    job = client.locks.once(name, version=version, wait=rng.random() < 0.8, retries=2, **options)
    world.say(ask, f"once {subject}")
    try:
        async with asyncio.timeout(client.patience()):
            outcome = await job.run(work, rng.choice([None, rng.uniform(0.1, 20.0)]))
    except GIVEN_UP as error:
        world.say(ask, f"{subject} is given up: {type(error).__name__}: {error}")
        return
    world.say(ask, f"{subject} is {outcome.status}, token {outcome.token}")
    if outcome.started is not None:
        world.history.add("done", subject, owner=outcome.owner, token=outcome.token, outcome=outcome.status)


async def stand(client: Client, name: str, ask: str) -> None:
    """Stand for election, lead for a while, and step down; or be told to stop, ahead of the term's end."""
    world, rng, process = client.world, client.world.rng, client.process
    election = client.locks.election(name, ttl=rng.choice([2.0, 4.0, 12.0]), data=ask)

    async def lead(term: Any) -> None:
        lease = term.lease
        client.granted(lease, ask, world.now)
        client.hear(lease, ask)
        try:
            for _ in range(rng.randint(1, 5)):
                if not term.valid or not client.check(lease) or not await client.write(lease):
                    return
                await asyncio.sleep(rng.expovariate(1 / 1.5))
            if rng.random() < 0.3:
                election.resign()
                await asyncio.sleep(1000.0)  # it is cancelled
        finally:
            world.say(ask, f"leads no longer with token {lease.token}: {term.over}")
            if not process.dead and not process.stalled(min(world.now, process.world_time(deadline(lease))) - 3.0):
                # It has led until now. Whoever could run was told in time, whatever the lease says of itself by now.
                held = {"owner": ask, "token": lease.token, "stored": client.server.stored(name, lease.token)}
                world.history.add("check", name, outcome="valid", **held)
                if lease.lost_reason == EXPIRED:
                    client.left(name, f"{ask} was told to stop when its term was over, and not before")

    world.say(ask, f"stands for {name}")
    try:
        async with asyncio.timeout(client.patience()):
            await election.run(lead)
    except GIVEN_UP as error:
        world.say(ask, f"{type(error).__name__}: {error}")


async def watch(client: Client, name: str) -> None:
    """See each leader once, in the order of their terms; unless a clock that goes back brings a term back."""
    highest = 0
    async for leader in client.locks.election(name).observe():
        if leader is not None:
            if leader.token < highest or (leader.token == highest and not client.server.back):
                client.left(name, f"{leader.data} is seen to lead with token {leader.token} after {highest}")
            highest = leader.token


class Membership:
    """One process's part in a group: each member comes once, in order, and goes once."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.group = client.locks.group(name, heartbeat=BEAT, look=BEAT)
        self.here: dict[int, bool] = {}
        self.group.on_joined(self.joined)
        self.group.on_left(self.gone)
        self.group.on_failed(self.gone)

    def joined(self, member: Any) -> None:
        if member.id <= max(self.here, default=0):
            self.client.left(self.group.name, f"member {member.id} has joined after {max(self.here)}")
        self.here[member.id] = True

    def gone(self, member: Any) -> None:
        if not self.here.get(member.id):
            self.client.left(self.group.name, f"member {member.id} has gone, and was not there")
        self.here[member.id] = False
        self.client.world.history.add("gone", self.group.name, owner=member.data, token=member.id)


async def join(client: Client, name: str, ask: str) -> None:
    """Be a member for a while."""
    world, rng = client.world, client.world.rng
    invoked = world.now
    try:
        member = client.membership = client.membership or Membership(client, name)
        async with asyncio.timeout(client.patience()):
            lease = await member.group.join(ask)
    except GIVEN_UP as error:
        world.say(ask, f"has not joined: {type(error).__name__}: {error}")
        return
    client.granted(lease, ask, invoked)
    client.hear(lease, ask)
    for _ in range(rng.randint(1, 5)):
        if not client.check(lease):
            break
        await asyncio.sleep(rng.expovariate(1 / 3.0))
    await client.give_back(lease)


JOBS = {"once": once, "election": stand, "group": join}
