"""The Redlock store: a lease is held on a majority of independent Redis nodes.

``store`` says what a majority means, ``node`` has what both drivers share, ``threads`` and ``tasks`` ask the nodes.
There is no push and no queue: waiters poll, and any of them may be next.
"""

from __future__ import annotations

from ...core.protocol import Opened


def open_url(url: str, namespace: str) -> Opened:
    from ..redis import check_options
    from .store import RedlockStore, nodes_of
    from .tasks import RedlockTasks
    from .threads import RedlockThreads

    nodes = nodes_of(url)
    check_options(nodes[0])
    store = RedlockStore(namespace, len(nodes))
    return Opened(store, lambda: RedlockThreads(nodes), lambda: RedlockTasks(nodes))
