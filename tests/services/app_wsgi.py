"""A service under gunicorn: leases are taken by threads of its own."""

import os
from typing import Any

from work import NAMESPACE, start_threads

import leasehold

locks = leasehold.connect(os.environ["SERVICE_URL"], namespace=NAMESPACE)
locks.drain_on_signals(grace=float(os.environ["SERVICE_GRACE"]))
start_threads(locks)


def app(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"here"]
