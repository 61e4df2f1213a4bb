"""leasehold's asyncio side in uvloop's event loop."""

from __future__ import annotations

import uvloop

from . import leasehold_peer


class Peer(leasehold_peer.Peer):
    threads = False
    waits = False  # that is measured with threads
    new_loop = staticmethod(uvloop.new_event_loop)
