"""The Lua scripts, each in a file of its own, and how a call of one goes over the wire."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

_FOLDER = files(__package__)


def pack(parts: Sequence[bytes]) -> bytes:
    """A command in Redis's protocol."""
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class Script:
    """A script's text and the hash that the server knows it by."""

    def __init__(self, name: str, *before: str) -> None:
        self.name = name
        text = "".join(_FOLDER.joinpath(f"{each}.lua").read_text("utf-8") for each in (*before, name))
        self.text = text.encode()
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()
        self._start = {keys: b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n%d\r\n" % (self.sha, keys) for keys in range(1, 10)}

    def __repr__(self) -> str:
        return f"<script {self.name}>"


class Call(NamedTuple):
    """One run of a script: a request that a driver answers with the script's reply."""

    script: Script
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]

    def short(self) -> tuple[bytes, ...]:
        """The command, with the script's hash."""
        return (b"EVALSHA", self.script.sha, b"%d" % len(self.keys), *self.keys, *self.args)

    def whole(self) -> tuple[bytes, ...]:
        """The command, with the script's text: for a server that has not seen it, or has forgotten it."""
        return (b"EVAL", self.script.text, b"%d" % len(self.keys), *self.keys, *self.args)

    def packed(self) -> bytes:
        """``short`` for the wire, quickly."""
        keys, args = self.keys, self.args
        start = self.script._start.get(len(keys))
        if start is None:
            return pack(self.short())
        parts = keys + args
        words = [b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]
        return b"*%d\r\n%b%b" % (3 + len(parts), start, b"".join(words))


ACQUIRE = Script("acquire", "entry")
RELEASE = Script("release", "entry")
ABANDON = Script("abandon", "entry")
INTERRUPT = Script("interrupt", "entry")
LOOK = Script("look", "entry")
RAISE = Script("raise", "entry")
RENEW = Script("renew")
ALL = (ACQUIRE, RELEASE, ABANDON, INTERRUPT, LOOK, RAISE, RENEW)
