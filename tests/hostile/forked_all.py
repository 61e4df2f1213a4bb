"""A process that is forked while it acquires two names: ``forked_all.py URL NAMESPACE MOMENT``.

The child goes on after the parent was granted the names, until its own acquire ends, and then exits as programs do. It
reports how that acquire ended, whether the parent still has the names then, and whether anybody else can acquire one.

``MOMENT``: the answer to the one step is late (``answer``), never comes in the child (``silence``, on Redis), or the
first of two names is held while the second is waited for (``second``).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import ExitStack
from typing import Any, NoReturn

import leasehold
from leasehold.testing import faults

PATIENCE = 20.0
URL, NAMESPACE, MOMENT = sys.argv[1:]


class Fork:
    """The child goes on when the parent holds the names."""

    def __init__(self) -> None:
        read, self._held = os.pipe()
        self._ended, self._write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.read(read, 1)

    def tell(self, how: str) -> None:
        """In the child: how its acquire ended."""
        os.write(self._write, how.encode())
        sys.exit(0)

    def end(self) -> str:
        """In the parent: let the child go on to its end."""
        os.write(self._held, b"1")
        os.waitpid(self.pid, 0)
        os.close(self._write)
        return os.read(self._ended, 100).decode()


def prepare(locks: Any, others: leasehold.Locks, stack: ExitStack) -> None:
    """See that the acquire takes long enough."""
    if MOMENT == "answer":
        faults.install(locks).delay_answer(2.0, "acquire_all", times=1)
    elif MOMENT == "silence":
        import redis

        stack.enter_context(redis.Redis.from_url(URL)).execute_command("CLIENT PAUSE", 2000, "ALL")
    else:
        held = others.lock("second").acquire()
        threading.Timer(2.0, held.release).start()


def report(lease: Any, others: leasehold.Locks, child: str) -> NoReturn:
    taken = [others.lock(name).try_acquire() for name in ("first", "second")]
    print(json.dumps({"child": child, "valid": lease.valid, "exclusive": not any(taken)}), flush=True)
    os._exit(0)


def main() -> None:
    forks: list[Fork] = []
    with ExitStack() as stack:
        others = stack.enter_context(leasehold.connect(URL, namespace=NAMESPACE, ttl=30))
        locks = stack.enter_context(leasehold.connect(URL, namespace=NAMESPACE, ttl=30))
        for each in (others, locks):
            each.lock("before").acquire().release()
        signal.signal(signal.SIGUSR1, lambda number, frame: forks.append(Fork()))
        prepare(locks, others, stack)
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        try:
            lease = locks.all_of("first", "second").acquire(timeout=PATIENCE)
            how = "acquired"
        except BaseException as error:
            if not forks or forks[0].pid:
                raise
            how = type(error).__name__
        if forks[0].pid == 0:
            forks[0].tell(how)
        report(lease, others, forks[0].end())


main()
