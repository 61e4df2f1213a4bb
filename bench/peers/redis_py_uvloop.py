"""redis-py's asyncio lock in uvloop's event loop."""

from __future__ import annotations

import uvloop

from . import redis_py_lock


class Peer(redis_py_lock.Peer):
    threads = False
    waits = False  # that is measured with threads
    new_loop = staticmethod(uvloop.new_event_loop)
