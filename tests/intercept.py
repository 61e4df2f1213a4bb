"""A test between a ``Locks`` and a real store, by the protocol that every store and driver follows.

The test sees each operation that is sent, with its time limit; acts before and after it, or raises in its place; and
sends wake-ups and operations of its own.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from leasehold.core.protocol import Ask, Opened
from leasehold.stores.urls import find_store
from leasehold.testing.store import THREADS, open_locks

OPERATIONS = {
    *("acquire", "acquire_all", "keep_waiting", "renew", "release", "give_back", "abandon", "interrupt"),
    *("scan", "inspect", "read_note", "write_note", "read_clock", "tidy"),
}


class Intercepted:
    """The store of a URL. ``before`` and ``after`` are called around an operation of that name, in its thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.before: dict[str, Callable[[], object]] = {}
        self.after: dict[str, Callable[[], object]] = {}
        self.asks: list[Ask] = []
        self.limits: defaultdict[str, list[float]] = defaultdict(list)
        """Of each operation, the time limits that it was sent with."""
        self.begun: Counter[str] = Counter()
        self.over: Counter[str] = Counter()
        self.drivers: list[Any] = []
        self.gate: AbstractContextManager[Any] = nullcontext()
        """Entered for each operation of a thread. With a lock, none is sent while the test has that."""

    def connect(self, side: str = THREADS, **options: Any) -> Any:
        """As ``leasehold.connect`` of the URL, or ``aio.connect``."""
        return open_locks(self, f"{__name__}:open_intercepted", side, **options)

    def attempt(self, name: str) -> str:
        """The attempt of the last acquire of the name."""
        return next(ask.attempt for ask in reversed(self.asks) if ask.name == name)

    def wake(self, name: str) -> None:
        """Send a wake-up for the last acquire of the name, and for the lease that it was granted."""
        for driver in self.drivers:
            driver.on_ring(self.attempt(name))

    def run(self, operation: Callable[[Any], Any]) -> Any:
        """Send an operation of the test's own: ``operation(store)`` makes it."""
        opened = find_store(self.url, "")
        driver = opened.threads()
        try:
            return driver.run(operation(opened.store), 10.0)
        finally:
            driver.close()


def open_intercepted(test: Intercepted, namespace: str) -> Opened:
    opened = find_store(test.url, namespace)
    store: Any = _Store(test, opened.store)
    return Opened(store, lambda: _Threads(test, opened.threads()), lambda: _Tasks(test, opened.tasks()))


class _Store:
    """Names each operation, so that a driver can tell which one it runs."""

    def __init__(self, test: Intercepted, inner: Any) -> None:
        self.test = test
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return functools.partial(self._named, name, found) if name in OPERATIONS else found

    def _named(self, name: str, operation: Callable[..., Any], *arguments: Any) -> Any:
        if name == "acquire":
            self.test.asks.append(arguments[0])
        steps = operation(*arguments)
        names[steps] = name
        return steps


names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


class _Driver:
    def __init__(self, test: Intercepted, inner: Any) -> None:
        self.test = test
        self.inner = inner
        test.drivers.append(self)

    @property
    def on_ring(self) -> Callable[..., None]:
        return self.inner.on_ring  # type: ignore[no-any-return]

    @on_ring.setter
    def on_ring(self, callback: Callable[..., None]) -> None:
        self.inner.on_ring = callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def begin(self, steps: Any, limit: float) -> str:
        name = names.get(steps) or str(steps.__name__)
        self.test.limits[name].append(limit)
        self.test.begun[name] += 1
        try:
            self.test.before.get(name, _nothing)()
        except BaseException:
            self.test.over[name] += 1
            raise
        return name

    def end(self, name: str) -> None:
        self.test.over[name] += 1


class _Threads(_Driver):
    def run(self, steps: Any, limit: float) -> Any:
        with self.test.gate:
            return self._run(steps, limit)

    def _run(self, steps: Any, limit: float) -> Any:
        name = self.begin(steps, limit)
        try:
            result = self.inner.run(steps, limit)
            self.test.after.get(name, _nothing)()
            return result
        finally:
            self.end(name)


class _Tasks(_Driver):
    async def run(self, steps: Any, limit: float) -> Any:
        name = self.begin(steps, limit)
        try:
            result = await self.inner.run(steps, limit)
            self.test.after.get(name, _nothing)()
            return result
        finally:
            self.end(name)


def _nothing() -> None: ...
