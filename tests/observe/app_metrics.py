"""A service under gunicorn with several workers: each holds a lease for as long as it lives, and serves the metrics."""

import os
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, multiprocess

import leasehold
from leasehold.prometheus import instrument

locks = leasehold.connect("memory://", ttl=60)
instrument(locks)  # before gunicorn forks its workers: it preloads the application
in_master = locks.lock("before the fork").acquire()
leases: list[leasehold.Lease] = []


def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    if not leases:
        leases.append(locks.lock(f"held by {os.getpid()}").acquire())
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-Worker", str(os.getpid()))])
    if environ["PATH_INFO"] == "/metrics":
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
        return [generate_latest(registry)]
    locks.lock(f"of {os.getpid()}").acquire().release()
    return [b"done"]


def child_exit(server: Any, worker: Any) -> None:
    multiprocess.mark_process_dead(worker.pid)
