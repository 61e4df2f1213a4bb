"""What users write, in both worlds: a type checker must find nothing here. Never imported, only checked."""

from __future__ import annotations

import asyncio
import functools
from datetime import timedelta
from typing import Any, Literal, Unpack

import leasehold
from leasehold import aio

# Threads.


def connecting() -> leasehold.Locks:
    leasehold.connect("memory://", ttl="30s", timeout=timedelta(seconds=5), poll=("10ms", 0.8), backoff="random")
    leasehold.connect(kinds={"batch": {"ttl": "2m", "heartbeat": 5}, "node": leasehold.Preset("2m", "1m", 20)})
    return leasehold.connect(namespace="billing", owner="api-7", ttl=30, renew=True, drift=0.5, max_renew_failures=2)


def locking(locks: leasehold.Locks) -> dict[str, int]:
    with locks.lock("a", ttl="1m", timeout=5, on_lost="raise", on_unavailable="skip", fair=False) as plain:
        token: int = plain.token
        held: leasehold.Lease = plain
    with locks.all_of("a", "b", on_lost=lost) as lease:
        lease.check()
        found = lease.tokens
    with locks.all_of("a", "b").acquire(timeout="5s") as lease:
        found = lease.tokens
    tried = locks.all_of("a", "b").try_acquire()
    if tried is not None:
        found = tried.tokens
    with locks.rlock("a") as entry, locks.rwlock("b").write() as writer, locks.semaphore("c", limit=2) as permit:
        token = entry.token + writer.downgrade().token + permit.token
    if locks.lock("a", on_lost=lambda lease: print(lease.name)).try_acquire(timeout="1s") is None:
        print(held.remaining, token)
    member = locks.group("g", heartbeat="5s", look=timedelta(milliseconds=500)).members().owner_of("key")
    counted: int = locks.counters().renewals
    last: leasehold.Member | None = member
    print(counted, last)
    return found if member is None or member.owner else {}


def lost(lease: leasehold.Lease) -> None:
    print(lease.lost_reason)


def customer_lock(locks: leasehold.Locks, customer: int, **options: Unpack[leasehold.LockOptions]) -> leasehold.Lock:
    return locks.lock(f"customer:{customer}", **options)


def nightly(locks: leasehold.Locks, every: leasehold.Duration) -> int:
    @locks.lock("nightly", ttl=every)
    def report(pages: int) -> int:
        return pages

    return report(3)


def options_of_a_file(config: dict[str, Any]) -> None:
    locks = leasehold.connect(config["url"], kinds=config["kinds"], **config["defaults"])
    locks.lock("a", **config)
    locks.semaphore("a", limit=2, **config)
    locks.all_of(*config["names"], **config)
    locks.rwlock("a", **config).read(**config)
    locks.election("a", **config)
    options: leasehold.LockOptions = {"ttl": "30s", "on_lost": "raise"}
    locks.lock("a", **options)
    locks.semaphore("b", limit=1, **options)


class Callback:
    def __call__(self, lease: leasehold.Lease) -> int:
        return lease.token


def add(found: list[str], lease: leasehold.Lease) -> None:
    found.append(lease.name)


def callbacks(locks: leasehold.Locks, found: list[str], maybe: float | None) -> None:
    locks.lock("a", on_lost=functools.partial(add, found), ttl=maybe)
    locks.lock("a", on_lost=Callback()).acquire(timeout=maybe).on_lost(print)
    locks.all_of("a", on_lost=lambda lease: found.append(lease.name))
    locks.on_event(lambda event: found.append(event.name))
    locks.group("g").on_joined(lambda member: found.append(member.owner))
    print(locks.group("g").members()[0].owner, locks.group("g").members()[1:])


def lead(term: leasehold.Term) -> int:
    return leasehold.fence.token(term.lease)


def other_kinds(locks: leasehold.Locks) -> int | None:
    locks.rwlock("a", ttl=5).read(timeout="1m")
    locks.once("a", version="v1", retry_by="same", ttl="1m")
    outcome: leasehold.Outcome[int] = locks.once("a", per="hour", keep=5).run(lambda: 5, check=False)
    outcome.result.bit_length()
    locks.once("a", per=timedelta(minutes=5), check=False).history()[-1].check()
    locks.accept("text", ttl="1m").renew("2m")
    locks.drain(grace="5m")
    return locks.election("a", stop_before="2s").run(lead)


async def other(url: str) -> None:
    async with leasehold.aio.connect(url) as locks:
        found = locks.counters()
        print(found.unavailable)
        tasks: leasehold.aio.Locks = locks
        print(tasks)


# asyncio.


async def locking_tasks(locks: aio.Locks) -> dict[str, int]:
    async with locks.all_of("a", "b") as lease:
        lease.check()
        found = lease.tokens
    async with locks.all_of("a", "b").acquire(timeout=5) as lease:
        found = lease.tokens
    lease = await asyncio.wait_for(locks.all_of("a", "b").acquire(), 5)
    tried = await locks.all_of("a", "b").try_acquire()
    if tried is not None:
        found = tried.tokens
    async with locks.lock("a", on_lost="cancel", ttl="1m") as plain, locks.accept("text") as heir:
        token: int = plain.token + heir.token
        held: aio.Lease = plain
    async with locks.rlock("a", on_lost=lost_task) as entry, locks.rwlock("b").write() as writer:
        token = entry.token + (await writer.downgrade()).token
    task: asyncio.Task[aio.Lease] = asyncio.create_task(locks.lock("a").acquire())
    task.cancel()
    print(token, held)
    return found


async def lost_task(lease: aio.Lease) -> None:
    await asyncio.sleep(lease.remaining)


async def lead_task(term: aio.Term) -> int:
    await term.stopping.wait()
    return term.token


async def other_kinds_of_tasks(locks: aio.Locks, **options: Unpack[aio.LockOptions]) -> aio.Member | None:
    @locks.lock("nightly", **options)
    async def report(pages: int) -> int:
        return pages

    outcome: aio.Outcome[int] = await locks.once("a", per="1h").run(functools.partial(report, 5))
    plain: aio.Outcome[str] = await locks.once("a").run(lambda: "x", check=False)
    print(outcome.result + 1, plain.result.upper(), [each.ok for each in await locks.once("a").history()])

    (await locks.lock("a").acquire()).on_lost(lost_task)
    led: int | None = await locks.election("a").run(lead_task)
    async for info in locks.leases():
        print(info.name, led, await report(3))
    async with await locks.group("g", heartbeat="5s").join({"port": 80}):
        return await locks.group("g").owner_of("x")


# Decorators.


def customer_name(customer: str, pages: int) -> str:
    return f"customer:{customer}"


def decorating(locks: leasehold.Locks, either: Literal["wait", "skip"]) -> int:
    @locks.lock(customer_name, if_busy="raise", on_lost="log")
    def sync(customer: str, pages: int) -> int:
        return pages

    @locks.lock("nightly:{pages}", if_busy="skip")
    def report(pages: int) -> int:
        return pages

    @locks.all_of("a:{pages}", "b", if_busy="skip")
    def both(pages: int) -> int:
        return pages

    made: int | None = report(3)
    skipping: leasehold.SkippingLock = locks.rwlock("a").write(if_busy="skip")
    lease = skipping.try_acquire(timeout="1s")
    name: str = locks.rlock("a", if_busy=either).name
    if made is None or both(3) is None or lease is None:
        return sync(name, pages=3)
    return made


async def decorating_tasks(locks: aio.Locks) -> int:
    @locks.semaphore("nightly:{pages}", limit=3, if_busy="skip")
    async def report(pages: int) -> int:
        return pages

    @locks.lock(customer_name)
    async def sync(customer: str, pages: int) -> int:
        return pages

    made: int | None = await report(3)
    return await sync("x", 3) if made is None else made
