"""What leasehold needs of PyMySQL and aiomysql that neither offers publicly. Their private names are used here alone.

Both drivers hide the socket. leasehold needs it to limit each statement in time, to notice that the server closed an
idle connection without a round trip, to wake the thread that listens, and to close connections without waiting for the
server. ``tests/stores/test_sql_compat.py`` fails if one of these names changes, and ``pyproject.toml`` bounds both
versions: raise a bound only when that test passes with the new version.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

# PyMySQL.


def socket_of(raw: Any) -> socket.socket | None:
    """The connection's socket, None once it is closed. PyMySQL's own ``ping`` would cost a round trip."""
    found: socket.socket | None = raw._sock
    return found


def limit(raw: Any, seconds: float) -> None:
    """How long the next statements may take. PyMySQL accepts a timeout for a whole connection only."""
    raw._read_timeout = raw._write_timeout = seconds


def close_at_once(raw: Any) -> None:
    """Close the socket. ``close()`` would first send a message, and wait if the server reads nothing."""
    raw._force_close()


# aiomysql.


def result_of(raw: Any) -> Any:
    """What the last ``query`` returned. A cursor of aiomysql would send SHOW WARNINGS after a statement that warns."""
    return raw._result


def abort(raw: Any) -> None:
    """End the connection, and whatever waits for its answer. ``close()`` would first send what is buffered."""
    if raw._writer is not None:
        raw._writer.transport.abort()


def is_stale(raw: Any) -> bool:
    """Whether the server closed the idle connection, or sent something unasked. ``ping`` would cost a round trip."""
    reader = raw._reader
    return raw.closed or reader is None or reader.at_eof() or bool(reader._buffer)


def close_without_loop(raw: Any) -> None:
    """Close the socket of a connection whose event loop is closed: a transport would ask that loop to do it."""
    writer, raw._writer = raw._writer, None
    if writer is None:
        return
    tls = getattr(writer.transport, "_ssl_protocol", None)  # TLS is a transport on top of another
    transport = writer.transport if tls is None else tls._transport
    if (found := getattr(transport, "_sock", None)) is not None:
        transport._sock, transport._closing = None, True
        found.close()


def options_of(pool: Any) -> Mapping[str, Any]:
    """How a pool connects. The connection that listens is made in the same way, beside the pool."""
    options: Mapping[str, Any] = pool._conn_kwargs
    return options
