"""Another process that acquires leases, controlled by lines of JSON: ``python -m leasehold.testing.child CONFIG``.

What only a process of its own can show (death, pauses, fork, signals) starts here. The other end is
:mod:`leasehold.testing.processes`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..core import clock
from ..core.lease import current
from .api import make_api
from .counter import Fenced, count
from .forking import Outliving, fork_and_use
from .handles import Lease, Locks, Waiter
from .inside import core
from .store import open_locks


class Child:
    """Each public method is a command; its result is the answer."""

    def __init__(self, url: str, opener: str | None, side: str, namespace: str) -> None:
        self._api = make_api(side)
        self._open = functools.partial(open_locks, url, opener, side, namespace=namespace)
        self._locks = Locks(self._api, self._open())
        self._leases: dict[str, Lease] = {}
        self._waiters: dict[str, Waiter] = {}
        self.forgetful = False

    def acquire(self, name: str, timeout: float | None = None, **options: Any) -> dict[str, Any]:
        self._leases[name] = self._locks.lock(name, **options).acquire(timeout)
        return self.state(name)

    def begin(self, name: str, timeout: float | None = None, **options: Any) -> None:
        """Begin to wait."""
        self._waiters[name] = self._locks.lock(name, **options).start(timeout)

    def finish(self, name: str) -> dict[str, Any]:
        """Return the result of a wait that has begun."""
        self._leases[name] = self._waiters.pop(name).lease()
        return self.state(name)

    def state(self, name: str) -> dict[str, Any]:
        lease = self._leases[name]
        # In the order that matters to a process which has just been woken: what it would do first comes first.
        return {
            "valid": lease.valid,
            "lost": lease.lost.is_set(),
            "reason": lease.lost_reason,
            "remaining": lease.remaining,
            "token": lease.token,
            "owner": lease.owner,
        }

    def offer(self, name: str) -> str:
        return self._leases[name].transfer()

    def accept(self, text: str) -> dict[str, Any]:
        lease = self._locks.accept(text)
        self._leases[lease.name] = lease
        return self.state(lease.name)

    def stop(self) -> None:
        """Stop, but not while the keeper uses the store: in a write to an embedded store it would block all others."""
        books = core(self._locks.real)
        while books.soonest < float("inf"):  # with what was taken
            time.sleep(0.001)
        with getattr(books.driver, "at_rest", nullcontext)():
            signal.raise_signal(signal.SIGSTOP)

    def release(self, name: str) -> bool:
        return self._leases[name].release()

    def work(self, name: str, path: str, gate: str, **options: Any) -> dict[str, Any]:
        """Increment a fenced counter once, when a file ``gate`` exists; return the outcome.

        While it runs, its owner is in a file beside the gate."""
        resource = Fenced(path)

        def work() -> Any:
            lease = current()
            value = resource.read()["value"]
            with Path(f"{gate}-begun").open("a") as begun:
                begun.write(f"{os.getpid()}\n")
            while not Path(gate).exists() and lease.valid:
                time.sleep(0.005)
            return [value, resource.write(value + 1, lease.token, lease.owner)]

        async def work_in_thread() -> Any:
            return await asyncio.to_thread(work)

        function = work if self._api.side == "threads" else work_in_thread
        outcome: dict[str, Any] = self._locks.once(name, **options).run(function).as_dict()
        return outcome

    def stand(self, name: str, log: str | None = None, **options: Any) -> None:
        """Be a candidate, and lead until notified to stop; record in a file when it led, and with which token."""
        self._election = self._locks.election(name, **options)
        self._election.start()
        if log is not None:
            threading.Thread(target=self._log_terms, args=(log,), daemon=True).start()

    def _log_terms(self, path: str) -> None:
        with Path(path).open("a", buffering=1) as file:
            while True:
                now = clock.now()  # before it asks: whoever trusts its lease later has trusted it now
                for term in self._election.terms[-1:]:
                    if term.lease.valid:
                        file.write(f"{term.token} {now!r}\n")
                time.sleep(0.005)

    def partition(self, on: bool) -> None:
        """Lose everything that is sent to the store, or stop losing it."""
        faults = self._locks.faults()
        if on:
            faults.lose_request("*", noticed_after=0.2)
        else:
            faults.mend()

    def terms(self) -> list[dict[str, Any]]:
        """The token of each term so far, and whether it leads now."""
        return [{"token": term.token, "leads": term.valid} for term in self._election.terms]

    def join(self, name: str, data: Any, **options: Any) -> int:
        self._group = self._locks.group(name, **options)
        return int(self._group.join(data).token)

    def count(self, **options: Any) -> list[dict[str, Any]]:
        return count(self._locks, **options)

    def fork(self, **options: Any) -> dict[str, Any]:
        return fork_and_use(self._locks, **options)

    def outlive(self, first: str, second: str) -> None:
        self._outliving = Outliving(self._locks, first, second)

    def outlived(self) -> str:
        return self._outliving.end()

    def interrupt(self, name: str) -> str:
        """Wait for ``name`` in the main thread until Ctrl-C. Answers first: from then on Ctrl-C may come."""

        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background have it ignored
        locks = self._open()

        def say() -> None:
            while not core(locks).asking:
                time.sleep(0.005)
            print(json.dumps({"answer": "asking"}), flush=True)

        threading.Thread(target=say, daemon=True).start()
        try:
            if self._api.side == "threads":
                locks.lock(name).acquire()
            else:
                asyncio.run(_wait_in_task(locks, name))
        except KeyboardInterrupt:
            return "KeyboardInterrupt"
        return "nothing"

    def leak(self, name: str) -> None:
        """Acquire a lease in a function that ends without releasing it, and forget its ``Locks`` too."""
        if self._api.side == "threads":
            self._leak = self._open().lock(name, ttl=30).acquire()
            del self._leak
        else:
            asyncio.run(_leak(self._open(), name))

    def forget_to_close(self) -> None:
        """End without closing anything."""
        self.forgetful = True

    def close(self) -> None:
        self._locks.close()


async def _leak(locks: Any, name: str) -> None:
    await locks.lock(name, ttl=30).acquire()


async def _wait_in_task(locks: Any, name: str) -> None:
    async with locks:
        await locks.lock(name).acquire()


def main() -> None:
    child = Child(**json.loads(sys.argv[1]))
    print(json.dumps({"answer": "ready"}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"answer": getattr(child, command.pop("do"))(**command)}
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)
    if not child.forgetful:
        child.close()


if __name__ == "__main__":
    main()
