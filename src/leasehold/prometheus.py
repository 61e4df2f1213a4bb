"""Metrics of leases for Prometheus, on ``prometheus_client`` (``pip install 'leasehold[prometheus]'``). ::

    from prometheus_client import start_http_server
    import leasehold
    from leasehold.prometheus import instrument

    locks = leasehold.connect()
    instrument(locks)
    start_http_server(9000)

What happens to leases is noted where it happens, and counted by a thread of this module's own, at the latest when the
metrics are collected: a lock of ``prometheus_client`` is never waited for by a caller of leasehold, which may be a
signal handler. In multi-process mode (``PROMETHEUS_MULTIPROC_DIR``) the files are written within 0.1 s.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from .core.claim import loss_word
from .core.log import ERROR, log
from .core.observing import AcquireFailed, Observed, Operation, WorkEnded
from .core.registry import Registry
from .model import Event
from .observe.watching import Watched, registry_of
from .runtime.thread_start import start_thread

try:
    import prometheus_client as client
    from prometheus_client.metrics import MetricWrapperBase
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    if error.name != "prometheus_client":
        raise
    raise ModuleNotFoundError(
        "leasehold.prometheus needs the module prometheus_client, which is not installed: "
        "run pip install 'leasehold[prometheus]'",
        name=error.name,
    ) from error

__all__ = ["instrument"]

PAUSE = 0.05
"""How long what happens is collected before it is counted."""
MOST_WAITING = 100_000
"""How many things that happened may wait to be counted. If no thread can be started, the oldest are dropped."""
MOST_KINDS = 100
"""How many kinds have a label of their own; the rest is ``other``: a kind may be made of an id."""

WAITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
HOLDS = (0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
CALLS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
MARGINS = (0.1, 0.25, 0.5, 1, 2.5, 5, 7.5, 10, 15, 20, 30, 60, 120, 300)

_mutex = threading.RLock()
"""Held while the metrics are written, and while the process forks: a child must not inherit a metric's locked mutex."""
_of_registries: weakref.WeakKeyDictionary[client.CollectorRegistry, Metrics] = weakref.WeakKeyDictionary()


def instrument(
    locks: object,
    registry: client.CollectorRegistry | None = None,
    name_label: Callable[[str], str] | None = None,
) -> None:
    """Export the metrics of a ``Locks``, of ``leasehold`` or ``leasehold.aio``.

    Several ``Locks`` share the metrics of one registry. A call that repeats an earlier one changes nothing.

    Args:
        locks: what ``connect`` returned.
        registry: where to register the metrics. Default: ``prometheus_client.REGISTRY``.
        name_label: makes the label ``name`` of ``leasehold_leader`` from an election's name. It must return few
            different labels, and is called in a thread of its own. Default: the label is empty.

    Raises:
        TypeError: ``locks`` is not a ``Locks``, or ``name_label`` cannot be called.
        ValueError: this ``Locks`` is instrumented with another registry or ``name_label``, or the registry has a metric
            of one of these names already.

    Example::

        instrument(locks, name_label=lambda name: name.partition(":")[0])
    """
    core = registry_of(locks)
    if name_label is not None and not callable(name_label):
        raise TypeError("name_label must be callable")
    registry = client.REGISTRY if registry is None else registry
    with _mutex:
        metrics = _of_registries.get(registry)
        if metrics is None:
            metrics = Metrics()
            registry.register(metrics)
            _of_registries[registry] = metrics
        metrics.watch(core, name_label)


class Metrics(Collector):
    """The metrics of one registry, and what has happened that is not counted yet."""

    def __init__(self) -> None:
        self._all: list[MetricWrapperBase] = []
        made: Any = self._made
        self._acquires = made(
            client.Histogram, "acquire_seconds", "How long acquires took", ["store", "kind", "outcome"], buckets=WAITS
        )
        self._holds = made(client.Histogram, "hold_seconds", "How long leases were held", ["kind"], buckets=HOLDS)
        self._calls = made(
            client.Histogram, "store_seconds", "How long the store took", ["operation", "outcome"], buckets=CALLS
        )
        self._margins = made(
            client.Histogram, "renewal_margin_seconds", "What was left of a lease when it was renewed", buckets=MARGINS
        )
        self._held = made(client.Gauge, "held", "Leases held now", multiprocess_mode="livesum")
        self._waiting = made(client.Gauge, "waiting", "Acquires that wait now", multiprocess_mode="livesum")
        self._leader = made(client.Gauge, "leader", "Elections led now", ["name"], multiprocess_mode="livesum")
        self._lost = made(client.Counter, "lost", "Leases lost", ["reason"])
        self._renewals = made(client.Counter, "renewals", "Renewals", ["outcome"])
        self._taken_over = made(client.Counter, "taken_over", "Leases taken over from a holder that let them expire")
        self._once = made(client.Counter, "once", "Work of once()", ["outcome"])
        self._kinds: set[str] = set()
        self._watched: weakref.WeakKeyDictionary[Registry, Watched] = weakref.WeakKeyDictionary()
        self._name_labels: weakref.WeakKeyDictionary[Watched, Callable[[str], str] | None]
        self._name_labels = weakref.WeakKeyDictionary()
        self._leading: dict[str, set[tuple[Watched, str, int | None]]] = {}
        self._children: dict[tuple[Any, ...], Any] = {}
        self._start_afresh()

    def _made(self, make: Callable[..., MetricWrapperBase], name: str, *args: Any, **options: Any) -> MetricWrapperBase:
        metric = make(f"leasehold_{name}", *args, registry=None, **options)
        self._all.append(metric)
        return metric

    def _start_afresh(self) -> None:
        self._happened: deque[tuple[Watched, Observed]] = deque(maxlen=MOST_WAITING)
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._awake = self._started = False

    def after_fork(self) -> None:
        """In the child: what has happened in the parent is counted there."""
        self._start_afresh()
        for led in self._leading.values():
            led.clear()

    def watch(self, core: Registry, name_label: Callable[[str], str] | None) -> None:
        for metrics in _of_registries.values():
            watched = metrics._watched.get(core)
            if watched is not None:
                if metrics is self and self._name_labels[watched] == name_label:
                    return
                raise ValueError("this Locks is instrumented already, with another registry or name_label")
        self._watched[core] = watched = Watched(core, self.note)
        self._name_labels[watched] = name_label

    # Wherever something happens. Takes no mutex.

    def note(self, watched: Watched, observed: Observed) -> None:
        self._happened.append((watched, observed))
        if not self._awake:
            self._awake = True
            if not self._started:
                self._started = True
                try:
                    start_thread("leasehold-metrics", self._work, self._wake)
                except RuntimeError:  # no thread can be started now: counted when the metrics are collected
                    self._started = self._awake = False
                    return
            self._wake.put(None)

    # In the thread of the metrics, or of who collects them.

    def _work(self, wake: queue.SimpleQueue[None]) -> None:
        while True:
            wake.get()
            while True:
                time.sleep(PAUSE)
                if self.count():
                    continue  # once more later: the gauges are read when nothing has happened for a while
                self._awake = False
                if not self._happened:
                    break
                self._awake = True

    def collect(self) -> Iterable[client.Metric]:
        with _mutex:
            self.count()
            return [family for metric in self._all for family in metric.collect()]

    def describe(self) -> Iterable[client.Metric]:
        return [family for metric in self._all for family in metric.describe()]

    def count(self) -> bool:
        """Count what has happened, and set the gauges. False if nothing has happened."""
        with _mutex:
            found = False
            while self._happened:
                watched, observed = self._happened.popleft()
                found = True
                try:
                    self._count(watched, observed)
                except Exception as error:  # name_label is the user's
                    log(ERROR, "an event could not be counted: %s", error, exc=error)
            self._held.set(sum(watched.held for watched in self._watched.values()))
            self._waiting.set(sum(watched.waiting for watched in self._watched.values()))
            for label, led in self._leading.items():
                self._child(self._leader, label).set(len(led))
            return found

    def _count(self, watched: Watched, observed: Observed) -> None:
        match observed:
            case Operation():
                self._child(self._calls, observed.operation, observed.outcome).observe(observed.seconds)
            case Event():
                self._count_event(watched, observed)
            case AcquireFailed():
                kind = self._kind(observed.kind)
                self._child(self._acquires, observed.store, kind, observed.outcome).observe(observed.waited)
            case WorkEnded():
                self._child(self._once, observed.outcome).inc()

    def _count_event(self, watched: Watched, event: Event) -> None:
        match event.type:
            case "acquired" | "taken_over":
                acquires = self._child(self._acquires, event.store, self._kind(event.kind), "acquired")
                acquires.observe(event.waited or 0.0)
                if event.type == "taken_over":
                    self._taken_over.inc()
                self._note_leader(watched, event, True)
            case "released" | "lost":
                if event.type == "lost":
                    self._child(self._lost, loss_word(event.reason)).inc()
                if event.held is not None:
                    self._child(self._holds, self._kind(event.kind)).observe(event.held)
                self._note_leader(watched, event, False)
            case "renewed":
                self._child(self._renewals, "ok").inc()
                if event.remaining is not None:
                    self._margins.observe(event.remaining)
            case "renewal_failed":
                self._child(self._renewals, "failed").inc()

    def _note_leader(self, watched: Watched, event: Event, leads: bool) -> None:
        if event.kind != "election":
            return
        name_label = self._name_labels[watched]
        label = "" if name_label is None else str(name_label(event.name))
        led, term = self._leading.setdefault(label, set()), (watched, event.name, event.token)
        if leads:
            led.add(term)
        else:
            led.discard(term)

    def _kind(self, kind: str | None) -> str:
        kind = kind or "other"
        if kind not in self._kinds:
            if len(self._kinds) >= MOST_KINDS:
                return "other"
            self._kinds.add(kind)
        return kind

    def _child(self, metric: MetricWrapperBase, *labels: str) -> Any:
        """The metric with these labels. ``labels()`` costs more than counting does."""
        key = (metric, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child


def _before_fork() -> None:
    _mutex.acquire()


def _after_fork_in_parent() -> None:
    _mutex.release()


def _after_fork_in_child() -> None:
    for metrics in list(_of_registries.values()):
        metrics.after_fork()
    _mutex.release()


def _at_exit() -> None:
    for metrics in list(_of_registries.values()):
        metrics.count()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
