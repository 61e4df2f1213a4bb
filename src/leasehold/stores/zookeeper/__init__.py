"""``zookeeper://``: leases as ephemeral nodes, in sessions as long as their ttl asks for.

What is stored: a node for each name, and below it one ephemeral sequential node for each attempt that holds or waits
(``nodes.py``). Who holds follows from the listing: whoever is first in line, as many as fit.

On whose clock: each process removes by its own clock what was not renewed in time (``guard.py``); the leader ends the
sessions of those that are dead. A session is longer than the ttl by what the two may differ (``sessions.py``).

What wakes a waiter: a watch on each of the two ahead of it in line (``queue.py``, ``stakes.py``).

Read next: ``nodes.py``, ``queue.py``, ``renewing.py``, then ``store.py`` for the other operations.
``requests.py`` is what it asks of the drivers, ``threads.py`` and ``tasks.py``. ``compat.py``: what kazoo hides.
"""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient

from ...core.protocol import Opened
from .compat import sasl_options
from .store import ZooKeeperStore
from .tasks import ZooKeeperTasks
from .threads import ZooKeeperClients, ZooKeeperThreads
from .url import ZooKeeperAddress, parse

_TAKEN_OVER = (
    *("default_acl", "randomize_hosts", "use_ssl", "verify_certs", "check_hostname", "certfile", "keyfile"),
    *("keyfile_password", "ca"),
)


def open_url(url: str, namespace: str) -> Opened:
    return _open(parse(url), namespace)


def open_client(client: Any, namespace: str) -> Opened:
    """A client that the user has made. It is never used, changed or closed: ours connect to where it does, as it does.

    A lease lives by its session, so the session's length has to be ours to choose.
    """
    if not isinstance(client, KazooClient):
        raise TypeError(f"connect() takes a kazoo.client.KazooClient, not {type(client).__name__}")
    options = {name: getattr(client, name) for name in _TAKEN_OVER}
    options["auth_data"] = list(client.auth_data)
    options["sasl_options"] = sasl_options(client)
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in client.hosts)
    return _open(ZooKeeperAddress(hosts, client.chroot, options), namespace)


def _open(address: ZooKeeperAddress, namespace: str) -> Opened:
    clients = ZooKeeperClients(address)
    store = ZooKeeperStore(clients.pool, clients.stakes, namespace)
    return Opened(store, lambda: ZooKeeperThreads(clients), lambda: ZooKeeperTasks(clients))
