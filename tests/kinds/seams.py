"""A ``Locks`` whose store or driver a test has changed, put together as ``connect`` does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Changed:
    """A store, some of whose operations are others: each is called with the store's own operation, then as that is."""

    def __init__(self, inner: Any, **operations: Callable[..., Any]) -> None:
        self.inner = inner
        self.operations = operations

    def __getattr__(self, name: str) -> Any:
        own = getattr(self.inner, name)
        changed = self.operations.get(name)
        return own if changed is None else lambda *args: changed(own, *args)


class Through:
    """A driver that passes everything on to the one that it is called with. Derived classes override ``run`` or
    ``listen``."""

    inner: Any = None

    def __call__(self, inner: Any) -> Any:
        self.inner = inner
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def on_ring(self) -> Any:
        return self.inner.on_ring

    @on_ring.setter
    def on_ring(self, called: Any) -> None:
        self.inner.on_ring = called


class Away(Through):
    """A driver for threads whose store is ``away`` at will: each call is refused at once, and counted."""

    def __init__(self) -> None:
        self.away = False
        self.calls = 0

    def run(self, steps: Any, limit: float) -> Any:
        self.check()
        return self.inner.run(steps, limit)

    def check(self) -> None:
        from leasehold import StoreUnavailable

        if self.away:
            self.calls += 1
            raise StoreUnavailable("away")


class AwayTasks(Away):
    """The same for tasks."""

    async def run(self, steps: Any, limit: float) -> Any:
        self.check()
        return await self.inner.run(steps, limit)

    def run_at_exit(self, steps: Any, limit: float) -> Any:
        self.check()
        return self.inner.run_at_exit(steps, limit)


def same(part: Any) -> Any:
    return part


def connect(
    url: str,
    side: str = "threads",
    *,
    store: Callable[[Any], Any] = same,
    driver: Callable[[Any], Any] = same,
    namespace: str = "",
    owner: str | None = None,
    **defaults: Any,
) -> Any:
    """As ``leasehold.connect`` or, for ``"asyncio"``, ``aio.connect``; ``store`` and ``driver`` change what is used."""
    # Loaded when called: a process of test_processes lengthens the first term before.
    from leasehold import Locks, aio
    from leasehold.stores.urls import find_store
    from leasehold.tasks.runner import TaskRegistry
    from leasehold.threads.runner import ThreadRegistry

    opened = find_store(url, namespace)
    options: dict[str, Any] = {"namespace": namespace, "owner": owner, "kinds": None, "defaults": defaults}
    if side == "threads":
        return Locks(ThreadRegistry(store(opened.store), driver(opened.threads()), **options))
    return aio.Locks(TaskRegistry(store(opened.store), driver(opened.tasks()), **options))
