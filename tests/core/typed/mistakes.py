"""Mistakes that a type checker must find: exactly the lines that end with the comment. Never imported, only checked."""

from __future__ import annotations

from datetime import timedelta

import leasehold
from leasehold import aio, fence

# Threads.


def connecting() -> None:
    leasehold.connect(tll=3)  # wrong
    leasehold.connect(namespace=3)  # wrong
    leasehold.connect(owner=7)  # wrong
    leasehold.connect(ttl=[3])  # wrong
    leasehold.connect(timeout=b"3s")  # wrong
    leasehold.connect(backoff="randum")  # wrong
    leasehold.connect(poll=0.5)  # wrong
    leasehold.connect(renew="no")  # wrong
    leasehold.connect(on_lost="raise")  # wrong
    leasehold.connect(kinds={"node": {"tll": 3}})  # wrong
    leasehold.connect(kinds={"node": {"renew_every": 3}})  # wrong
    leasehold.connect(kinds={"node": (60, 30, 10)})  # wrong
    leasehold.Preset("2m", "1m")  # wrong
    leasehold.Preset(ttl=60, renew_evry=30, heartbeat=10)  # wrong
    print(leasehold.nothing)  # wrong
    print(leasehold.aio.nothing)  # wrong


def locking(locks: leasehold.Locks) -> None:
    locks.lock(3)  # wrong
    locks.lock("a", 30)  # wrong
    locks.lock("a", tll=3)  # wrong
    locks.lock("a", ttl=[3])  # wrong
    locks.lock("a", renew_every=(1, 2))  # wrong
    locks.lock("a", on_lost="cancle")  # wrong
    locks.lock("a", on_lost="cancel")  # wrong
    locks.lock("a", on_lost=5)  # wrong
    locks.lock("a", on_lost=lambda: None)  # wrong
    locks.lock("a", on_lost=lost_task)  # wrong
    locks.lock("a", on_unavailable="skpi")  # wrong
    locks.lock("a", backoff="randum")  # wrong
    locks.lock("a", poll=0.5)  # wrong
    locks.lock("a", poll=(0.1, 0.2, 0.3))  # wrong
    locks.lock("a", renew="no")  # wrong
    locks.lock("a", fair="no")  # wrong
    locks.lock("a", max_renew_failures="3")  # wrong
    locks.lock("a", kind=None)  # wrong
    locks.lock("a", blocking_timeout=5)  # wrong
    locks.lock("a").release()  # wrong
    locks.lock("a").extend(5)  # wrong
    locks.lock("a").acquire(blocking=False)  # wrong
    locks.lock("a").acquire(timeout=[5])  # wrong
    locks.lock("a").try_acquire().release()  # wrong


def kinds_of_lock(locks: leasehold.Locks) -> None:
    locks.semaphore("a", limit=2, tll=3)  # wrong
    locks.semaphore("a", limit="2")  # wrong
    locks.semaphore("a", limit=2, backoff="randum")  # wrong
    locks.rlock("a", tll=3)  # wrong
    locks.rlock("a", on_lost="cancel")  # wrong
    locks.rwlock("a", tll=3)  # wrong
    locks.rwlock("a").acquire()  # wrong
    locks.rwlock("a").read(tll=3)  # wrong
    locks.rwlock("a").write(on_unavailable="skpi")  # wrong
    locks.all_of(["a", "b"])  # wrong
    locks.all_of("a", "b", tll=3)  # wrong
    locks.all_of("a", "b", on_lost="cancle")  # wrong
    locks.accept(5)  # wrong
    locks.accept("text", tll=3)  # wrong


def other_kinds(locks: leasehold.Locks) -> None:
    locks.once("a", retry_by="sane")  # wrong
    locks.once("a", tll=3)  # wrong
    locks.once("a", on_lost="raise")  # wrong
    locks.once("a", version=1.5)  # wrong
    locks.once("a", retries="3")  # wrong
    locks.once("a").run(5)  # wrong
    locks.once("a", per=[1])  # wrong
    locks.once("a", check="no")  # wrong
    locks.once("a").run(lambda: 5).result.upper()  # wrong
    locks.once("a").run(lambda number: number)  # wrong
    locks.election("a", stop_befor=3)  # wrong
    locks.election("a", max_hold=3)  # wrong
    locks.election("a").run(lambda: None)  # wrong
    locks.group("a", heartbeet=3)  # wrong
    locks.group("a", misses="3")  # wrong
    locks.group("a", ttl=3)  # wrong
    locks.group("a").owner_of(5)  # wrong
    print(locks.group("a").members().leader)  # wrong
    print(locks.group("a").members()[0].ownr)  # wrong
    locks.group("a").on_joined(lambda: None)  # wrong


def looking(locks: leasehold.Locks) -> None:
    locks.on_event(lambda: None)  # wrong
    locks.drain(grace=None)  # wrong
    locks.break_lease("a", froce=True)  # wrong
    locks.leases(prefix=5)  # wrong
    print(locks.inspect("a").token)  # wrong
    fence.token("a")  # wrong


def holding(lease: leasehold.Lease) -> None:
    lease.token = 5  # wrong
    lease.extend(5)  # wrong
    lease.renew(ttl=[5])  # wrong
    lease.on_lost(lambda: None)  # wrong
    token: str = lease.token  # wrong
    print(token)


async def thread_lock_in_a_task(locks: leasehold.Locks) -> None:
    await locks.lock("a").acquire()  # wrong
    await locks.break_lease("a")  # wrong
    async with locks.lock("a"):  # wrong
        pass


def lost_thread(lease: leasehold.Lease) -> None: ...


# asyncio.


def lost_task(lease: aio.Lease) -> None: ...


def work() -> None: ...


def connecting_tasks() -> None:
    aio.connect(tll=3)  # wrong
    aio.connect(namespace=3)  # wrong
    aio.connect(backoff="randum")  # wrong
    aio.connect(kinds={"node": {"ttl": timedelta(minutes=1), "hartbeat": 3}})  # wrong


async def locking_tasks(locks: aio.Locks) -> None:
    locks.lock("a", tll=3)  # wrong
    locks.lock("a", on_lost="cancle")  # wrong
    locks.lock("a", on_lost=lost_thread)  # wrong
    locks.lock("a", on_unavailable="skpi")  # wrong
    locks.lock("a", backoff="randum")  # wrong
    locks.semaphore("a", limit=2, tll=3)  # wrong
    locks.rlock("a", tll=3)  # wrong
    locks.rwlock("a").read(tll=3)  # wrong
    locks.all_of("a", tll=3)  # wrong
    locks.accept("text", tll=3)  # wrong
    locks.once("a", retry_by="sane")  # wrong
    locks.election("a", stop_befor=3)  # wrong
    locks.group("a", heartbeet=3)  # wrong
    locks.lock("a")(work)  # wrong
    await locks.election("a").run(lambda term: term.token)  # wrong


async def not_awaited(locks: aio.Locks) -> None:
    with locks.lock("a"):  # wrong
        pass
    with locks.lock("a").acquire():  # wrong
        pass
    async with locks.group("a").join():  # wrong
        pass
    for _ in locks.leases():  # wrong
        pass
    print(locks.lock("a").acquire().token)  # wrong
    locks.break_lease("a")  # wrong
    print(locks.group("a").members()[0].id)  # wrong


# Decorators.


def decorating(locks: leasehold.Locks) -> None:
    locks.lock("a", if_busy="skipp")  # wrong
    locks.semaphore("a", limit=2, if_busy="skipp")  # wrong
    locks.rwlock("a", if_busy="skip")  # wrong
    locks.accept("text", if_busy="skip")  # wrong
    locks.once("a", if_busy="skip")  # wrong
    locks.lock(lambda customer: 5)  # wrong
    locks.lock("a", if_busy="skip").acquire()  # wrong
    with locks.lock("a", if_busy="skip"):  # wrong
        pass
    with locks.all_of("a", "b", if_busy="skip"):  # wrong
        pass

    @locks.lock("a", if_busy="skip")
    def pages() -> int:
        return 5

    print(pages() + 1)  # wrong


async def decorating_tasks(locks: aio.Locks) -> None:
    locks.lock("a", if_busy="skipp")  # wrong
    locks.rwlock("a").read(if_busy="skipp")  # wrong
    await locks.lock("a", if_busy="skip").acquire()  # wrong
    async with locks.rlock("a", if_busy="skip"):  # wrong
        pass

    @locks.lock("a", if_busy="skip")
    async def pages() -> int:
        return 5

    print(await pages() + 1)  # wrong
