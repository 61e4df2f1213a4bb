"""``memory://name``: leases inside this process, for tests. All ``Locks`` with the same name share them."""

from __future__ import annotations

import bisect
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from ..core import clock
from ..core.protocol import Busy, Opened, Steps, T, refuse_options, run_steps
from .common.entries import Alive, JointEntryStore, Page, Read, ReadNote, Ring, Row, Swap, SwapAll, Tidy, WriteNote


class MemoryStore(JointEntryStore):
    """See :class:`leasehold.core.protocol.Store`, which says what each operation means."""

    def read_clock(self, name: str) -> Steps[int | None]:
        row: Row = yield Read(name)
        return row.wall


class Table:
    """The rows of one ``memory://name``: (namespace, name) → (version, token, state). Tests can replace its clocks."""

    def __init__(self, now_us: Callable[[], int] = clock.now_us, wall_us: Callable[[], int] = clock.wall_us) -> None:
        self.now_us = now_us
        self.wall_us = wall_us
        self.rows: dict[tuple[str, str], tuple[int, int, str]] = {}
        self.notes: dict[tuple[str, str], str | None] = {}
        self.drivers: WeakValueDictionary[str, _MemoryDriver] = WeakValueDictionary()
        self.mutex = threading.RLock()  # a signal handler or a destructor can interrupt a change
        self.changes = 0
        """Counts changes, so that a change notices another one that interrupted it in the same thread."""

    def after_fork(self) -> None:
        """Free all names in a forked child, which holds no lease. Their tokens keep rising."""
        self.mutex = threading.RLock()
        for key, (version, token, _) in self.rows.items():
            self.rows[key] = (version + 1, token, "")


_tables: dict[str, Table] = {}


def open_url(url: str, namespace: str) -> Opened:
    table = _tables.setdefault(refuse_options(url).strip("/"), Table())
    store = MemoryStore("memory")
    return Opened(store, lambda: MemoryThreads(table, namespace), lambda: MemoryTasks(table, namespace))


def _forked() -> None:
    for each in _tables.values():
        each.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _MemoryDriver:
    """Answers the requests of :mod:`leasehold.stores.common.entries` from a Table."""

    def __init__(self, rows: Table, namespace: str) -> None:
        self.on_ring: Callable[[str], None] = lambda attempt: None
        self._table = rows
        self._namespace = namespace
        self.after_fork()

    def after_fork(self) -> None:
        self._session = os.urandom(8).hex()
        self._table.drivers[self._session] = self

    def forget(self, attempt: str) -> None:
        pass

    def _handle(self, request: Any) -> Any:
        match request:
            case Read(name):
                return self._row(name)
            case Swap():
                return next(iter(self._swap_all([request])), 0)
            case SwapAll(swaps):
                return self._swap_all(swaps)
            case Ring(session, attempt):
                driver = self._table.drivers.get(session)
                if driver is not None:
                    driver.on_ring(attempt)
                return True
            case Alive():
                return True
            case Page(prefix, after, count):
                with self._table.mutex:
                    names = sorted(name for space, name in self._table.rows if space == self._namespace)
                names = names[bisect.bisect_right(names, after) :]
                return [self._row(name) for name in names if name.startswith(prefix)][:count]
            case ReadNote(name):
                return self._table.notes.get((self._namespace, name))
            case WriteNote(name, version, text):
                return self._write_note((self._namespace, name), version, text)
            case Tidy():
                return False
        raise TypeError(request)

    def _swap_all(self, swaps: Sequence[Swap]) -> Sequence[int]:
        table = self._table
        with table.mutex:
            seen = table.changes
            keys = [(self._namespace, swap.name) for swap in swaps]
            if any(table.rows.get(key, (0,))[0] != swap.version for key, swap in zip(keys, swaps, strict=True)):
                return ()
            new = {key: (swap.version + 1, swap.token, swap.state) for key, swap in zip(keys, swaps, strict=True)}
            if table.changes != seen:
                return ()
            table.changes = seen + 1  # no call between the comparison and the end, so nothing can interrupt
            table.rows |= new
        return [swap.version + 1 for swap in swaps]

    def _write_note(self, key: tuple[str, str], version: int, text: str | None) -> bool:
        table = self._table
        with table.mutex:
            seen = table.changes
            found = table.rows.get(key)
            if found is None or found[0] != version:
                return False
            new = {key: (version + 1, *found[1:])}
            note = {key: text}
            if table.changes != seen:
                return False
            table.changes = seen + 1
            table.rows |= new
            table.notes |= note
            return True

    def _row(self, name: str) -> Row:
        version, token, state = self._table.rows.get((self._namespace, name), (0, 0, ""))
        return Row(name, version, token, state, self._table.now_us(), self._table.wall_us(), self._session)


class MemoryThreads(_MemoryDriver):
    def run(self, steps: Steps[T], limit: float) -> T:
        return run_steps(steps, self._handle)

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        return True

    def close(self) -> None:
        pass


class MemoryTasks(_MemoryDriver):
    async def run(self, steps: Steps[T], limit: float) -> T:
        return run_steps(steps, self._handle)

    async def listen(self, attempt: str, busy: Busy | None) -> bool:
        return True

    async def close(self) -> None:
        pass

    def new_loop(self) -> None:
        pass

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        return run_steps(steps, self._handle)

    def close_at_exit(self) -> None:
        pass
