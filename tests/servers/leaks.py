"""What a driver leaves to the garbage collector and no code of ours can close.

pymongo forgets the socket of a connection in the making when its task is cancelled. The collector finds it in whichever
test runs by then, where it would be an error. By then its server may be gone, and with it where the socket led: so what
pymongo makes is written down at once.
"""

import inspect
import socket
import ssl
import sys
from types import FrameType
from typing import Any

FORGETFUL = "pymongo"

_theirs: set[int] = set()
"""The `id` of each socket that was made by a driver that may forget it."""


def overlook_them() -> None:
    """An unclosed socket stays an error of the test that finds it, except for these."""
    report = sys.unraisablehook

    def look(found: "sys.UnraisableHookArgs") -> None:
        if not (isinstance(found.exc_value, ResourceWarning) and id(found.object) in _theirs):
            report(found)

    sys.unraisablehook = look


def write_down_what_they_make() -> None:
    """From now on, for the whole process."""
    make = socket.socket.__init__

    def make_and_tell(self: socket.socket, *arguments: Any, **options: Any) -> None:
        forgetful = "kazoo" if isinstance(self, ssl.SSLSocket) else FORGETFUL  # when a server speaks no TLS
        (_theirs.add if _asked_by(forgetful, inspect.currentframe()) else _theirs.discard)(id(self))
        make(self, *arguments, **options)

    socket.socket.__init__ = make_and_tell  # type: ignore[method-assign]


def _asked_by(package: str, frame: FrameType | None) -> bool:
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] != package:
        frame = frame.f_back
    return frame is not None
