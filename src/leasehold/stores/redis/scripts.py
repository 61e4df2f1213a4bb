"""The Lua scripts, each in a file of its own, and how a call of one goes over the wire."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

_FOLDER = files(__package__)


def pack(parts: Sequence[bytes]) -> bytes:
    """A command in Redis's protocol."""
    return b"*%d\r\n%b" % (len(parts), _words(parts))


def _words(parts: Sequence[bytes]) -> bytes:
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class Script:
    """A script's text, put together from files of which the last gives it its name, and the hash of it."""

    def __init__(self, *parts: str) -> None:
        self.name = parts[-1]
        text = "".join(_FOLDER.joinpath(f"{part}.lua").read_text("utf-8") for part in parts)
        self.text = text.encode()
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()

    def __repr__(self) -> str:
        return f"<script {self.name}>"


class Call(NamedTuple):
    """One run of a script: a request that a driver answers with the script's reply."""

    script: Script
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]
    ready: bytes = b""
    """``short`` as it goes over the wire, where it was put together of prepared parts."""
    claims: bool = False
    """Whether it is of one who waits, and may have been granted the lease."""

    @property
    def comes_first(self) -> bool:
        """Whether it keeps, ends or claims a lease: it never waits for a connection behind new acquires."""
        return self.claims or self.script in FIRST

    def short(self) -> tuple[bytes, ...]:
        """The command, with the script's hash."""
        return (b"EVALSHA", self.script.sha, b"%d" % len(self.keys), *self.keys, *self.args)

    def whole(self) -> tuple[bytes, ...]:
        """The command, with the script's text: for a server that has not seen it, or has forgotten it."""
        return (b"EVAL", self.script.text, b"%d" % len(self.keys), *self.keys, *self.args)

    def packed(self) -> bytes:
        """``short`` for the wire."""
        return self.ready or pack(self.short())


class Form:
    """Calls of one script that differ in their first arguments alone: all the rest is packed once."""

    def __init__(self, script: Script, keys: tuple[bytes, ...], count: int, rest: tuple[bytes, ...] = ()) -> None:
        self._script = script
        self._keys = keys
        self._rest = rest
        start = (b"EVALSHA", script.sha, b"%d" % len(keys), *keys)
        self._start = b"*%d\r\n%b" % (len(start) + count + len(rest), _words(start))
        self._end = _words(rest)

    def call(self, *args: bytes) -> Call:
        """The call with these first arguments: as many as were announced."""
        ready = self._start
        for arg in args:
            ready += b"$%d\r\n%b\r\n" % (len(arg), arg)
        return Call(self._script, self._keys, args + self._rest, ready + self._end)


_RECORD = ("fields", "record")
_ENTRY = (*_RECORD, "soon", "grant", "entry")
ACQUIRE = Script(*_RECORD, "acquire_free", "acquire_behind", "seen", "soon", "grant", "entry", "acquire")
ACQUIRE_ALL = Script("fields", "seen", "acquire_all")
RELEASE = Script(*_RECORD, "release_quickly", "soon", "grant", "release_to_next", "entry", "mark", "release")
ABANDON = Script(*_ENTRY, "mark", "abandon")
INTERRUPT = Script(*_ENTRY, "interrupt")
LOOK = Script(*_RECORD, "seen", "look")
LOOK_FOR = Script("fields", "seen", "soon", "look_for")
RAISE = Script(*_ENTRY, "raise")
RENEW = Script("fields", "renew")
VOTE = Script(*_RECORD, "grant", "vote")
FIRST = frozenset((RENEW, RELEASE, ABANDON))
READ_NOTE = Script("read_note")
WRITE_NOTE = Script(*_RECORD, "write_note")
ALL = (ACQUIRE, ACQUIRE_ALL, RELEASE, ABANDON, INTERRUPT, LOOK, LOOK_FOR, RAISE, RENEW, VOTE, READ_NOTE, WRITE_NOTE)
