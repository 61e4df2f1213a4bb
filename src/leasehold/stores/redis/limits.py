"""The numbers that steer the drivers of Redis, each with its reason. Those of a cluster are in ``cluster.py``."""

MOST = 5
"""Connections for calls of one ``Locks``. More callers than that take turns: a call takes well under a millisecond."""
RESERVED = 2
"""How many of them are for renewals, releases and claims alone: acquires never keep these waiting."""
FRESH = 0.01
"""Seconds. A connection that was used so recently is not checked before it is used again: a check is a system call."""
SURPLUS = 5.0
"""Seconds after which a connection beyond the first is closed if it was not needed."""
CONNECT_LIMIT = 2.0
"""Seconds to make the listening connection: its waiters poll meanwhile."""
HEARTBEAT = 2.5
"""Seconds without a message after which a listener asks whether the server is still there, and then gives it up."""
SENTINEL_LIMIT = 1.0
"""Seconds that one Sentinel may take: the next one knows as much."""
PLAIN_LIMIT = 0.3
"""Seconds for the question whether a server answers without TLS, after its handshake has used up the limit."""
GOODBYE = 0.5
"""Seconds that a close waits until a connection of asyncio is closed: less than its close waits for the listener."""
RETURN_LIMIT = 1.0
"""Seconds that a close waits until the pool of the user's client has its connections again."""
SOON, LATER = 0.05, 1.0
"""Seconds before a listener tries again, doubled each time up to the second number: waiters poll meanwhile."""
