"""The Lua scripts. Each operation is one file; it is sent with the files that it needs in front of it.

Read first ``record.lua`` (what is stored), then ``entry.lua`` and ``grant.lua`` (the rules), then ``acquire.lua``.
"""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files


class Script:
    """A script's text, put together from files of which the last gives it its name, and its hash."""

    def __init__(self, *parts: str) -> None:
        self.name = parts[-1]
        folder = files(__package__)
        self.text = "".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in parts).encode()
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()

    def __repr__(self) -> str:
        return f"<script {self.name}>"


_RECORD = ("fields", "record")
_ENTRY = (*_RECORD, "soon", "grant", "entry")
ACQUIRE = Script(*_RECORD, "acquire_free", "seen", "soon", "grant", "entry", "acquire")
ACQUIRE_ALL = Script("fields", "seen", "acquire_all")
RELEASE = Script(*_ENTRY, "mark", "release")
ABANDON = Script(*_ENTRY, "mark", "abandon")
INTERRUPT = Script(*_ENTRY, "interrupt")
LOOK = Script(*_RECORD, "seen", "look")
LOOK_FOR = Script("fields", "seen", "soon", "look_for")
RAISE = Script(*_ENTRY, "raise")
RENEW = Script("fields", "renew")
VOTE = Script(*_RECORD, "grant", "vote")
READ_NOTE = Script("read_note")
WRITE_NOTE = Script(*_RECORD, "write_note")
CLOCK = Script("clock")
ALL = (
    *(ACQUIRE, ACQUIRE_ALL, RELEASE, ABANDON, INTERRUPT, LOOK, LOOK_FOR, RAISE, RENEW, VOTE),
    *(READ_NOTE, WRITE_NOTE, CLOCK),
)
