"""Socket helpers that several drivers share."""

from __future__ import annotations

import socket


def hang_up(connection: socket.socket | None) -> None:
    """End a read in another thread, as if the peer had disconnected. The reading thread closes the socket."""
    if connection is not None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # already closed, or never connected
