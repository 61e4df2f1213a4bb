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
