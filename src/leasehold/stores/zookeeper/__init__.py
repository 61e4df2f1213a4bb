"""``zookeeper://``: leases as ephemeral nodes, in sessions as long as their ttl asks for.

``nodes.py`` has the stored shape and the rule who holds; ``reading.py``, ``placing.py``, ``asking.py``, ``several.py``,
``renewing.py`` and ``store.py`` say what is asked, in the terms of ``requests.py``; ``link.py`` keeps the sessions
(``session.py``) and what is staked on them (``stake.py``), ``threads.py`` and ``tasks.py`` are the drivers.
"""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient

from ...core.protocol import Opened
from .link import Link
from .store import ZooKeeperStore
from .tasks import ZooKeeperTasks
from .threads import ZooKeeperThreads
from .url import Address, parse

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
    options["sasl_options"] = client._connection.sasl_options
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in client.hosts)
    return _open(Address(hosts, client.chroot, options), namespace)


def _open(address: Address, namespace: str) -> Opened:
    link = Link(address)
    store = ZooKeeperStore(link, namespace)
    return Opened(store, lambda: ZooKeeperThreads(link), lambda: ZooKeeperTasks(link))
