"""MongoDB: ``mongodb://…/database?collection=…``, a standalone server, a replica set, or a cluster sharded by ``_id``.

**What is stored**: one document per name, and every operation is one atomic command on it::

    {_id: {ns, name}, format, token, shape, limit,
     holders: [{attempt, owner, kind, data, session, weight, ttl, rest, token, acquired, expires, state}],
     queue:   [{attempt, owner, kind, data, session, weight, ttl, rest, expires, state}],
     lapsed: {found_by, holders: who let it expire last}, abandoned: [{attempt, sent, found, expires}], note, purge,
     call: "<ms> <session>/<attempt>/<token> …": the waiters that the last change notified, and when}

Durations are milliseconds. A document with a note has no ``purge``, so that the TTL index leaves it alone.

**On whose clock**: the server's (``$$NOW``), cut to the millisecond. Tokens are ``max(last + 1, that clock in µs)``.

**What wakes a waiter**: a release grants to the head of the queue in the same command, and leaves in ``call`` whom that
concerns. The waiter receives it by a change stream, or by a tailable cursor on a small capped collection.

**What to read next**: :mod:`.pipelines` (the rules of one name), :mod:`.store` (the operations), :mod:`.requests`
(the commands), :mod:`.calls` and :mod:`.listening` (waking), :mod:`.driver`, :mod:`.threads`, :mod:`.tasks` (the I/O);
``docs/design/06-mongodb.md`` has the reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.protocol import Opened, TaskDriver, ThreadDriver

if TYPE_CHECKING:
    from .url import Target


def open_url(url: str, namespace: str) -> Opened:
    from .url import target_from_url

    return _open(target_from_url(url, namespace))


def open_client(client: object, namespace: str) -> Opened:
    """The user's own MongoClient, AsyncMongoClient, Database or Collection of either."""
    from .url import target_from_client

    return _open(target_from_client(client, namespace))


def _open(target: Target) -> Opened:
    from .store import MongoStore

    store = MongoStore()

    def threads() -> ThreadDriver:
        from .threads import MongoThreads

        return MongoThreads(target.for_threads(), store.waiters)

    def tasks() -> TaskDriver:
        from .tasks import MongoTasks

        return MongoTasks(target.for_tasks(), store.waiters)

    return Opened(store, threads, tasks)
