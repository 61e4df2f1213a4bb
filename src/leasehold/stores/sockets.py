"""What several drivers do with a socket."""

from __future__ import annotations

import socket


def hang_up(connection: socket.socket | None) -> None:
    """Have a read in another thread end, as if the other side had gone. Closing it is left to whoever reads."""
    if connection is not None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed, or was never connected
