"""Another process that takes leases, told what to do by lines of JSON: ``python -m leasehold.testing.child CONFIG``.

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
from typing import Any

from .api import make_api
from .counter import count
from .forking import Outliving, fork_and_use
from .handles import Lease, Locks, Waiter
from .store import open_locks


class Child:
    """Each public method is a command; what it returns is the answer."""

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
        """Start to wait."""
        self._waiters[name] = self._locks.lock(name, **options).start(timeout)

    def finish(self, name: str) -> dict[str, Any]:
        """Wait for what was begun."""
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

    def release(self, name: str) -> bool:
        return self._leases[name].release()

    def count(self, **options: Any) -> list[dict[str, Any]]:
        return count(self._locks, **options)

    def fork(self, **options: Any) -> dict[str, Any]:
        return fork_and_use(self._locks, **options)

    def outlive(self, first: str, second: str) -> None:
        self._outliving = Outliving(self._locks, first, second)

    def outlived(self) -> str:
        return self._outliving.end()

    def interrupt(self, name: str, after: float) -> str:
        """Wait for ``name`` in the main thread until Ctrl-C, which comes ``after`` so many seconds."""

        def press() -> None:
            time.sleep(after)
            os.kill(os.getpid(), signal.SIGINT)

        locks = self._open()
        threading.Thread(target=press, daemon=True).start()
        try:
            if self._api.side == "threads":
                locks.lock(name).acquire()
            else:
                asyncio.run(_wait_in_task(locks, name))
        except KeyboardInterrupt:
            return "KeyboardInterrupt"
        return "nothing"

    def leak(self, name: str) -> None:
        """Take a lease in a function that ends without giving it back, and forget its ``Locks`` too."""
        if self._api.side == "threads":
            self._leak = self._open().lock(name, ttl=30).acquire()
            del self._leak
        else:
            asyncio.run(_leak(self._open(), name))

    def forget_to_close(self) -> None:
        """End without closing anything, as programs do."""
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
