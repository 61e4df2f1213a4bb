"""A wall clock that a test can set, for the processes that it chooses, by libfaketime.

    clock = FakeClock()
    server = start_server(Valkey, env=clock.env)
    clock.step(300)

Valkey, PostgreSQL, MariaDB and MongoDB obey it (Valkey a millisecond later). Redis 7.0 doesn't start under it
and etcd doesn't see it. The monotonic clock stays true. In Python `time.sleep` fails under it (EINVAL), while
`Event.wait`, `select` and asyncio work.
"""

import tempfile
from pathlib import Path

from . import find, reaper


class FakeClock:
    """`env` makes a process read this clock from its start on; `step` sets it for all that do."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="leasehold-clock-"))
        folder.chmod(0o755)  # PostgreSQL is run by another user
        reaper.tell("folder", folder)
        self._file = folder / "offset"
        self.env = {
            "LD_PRELOAD": str(find.require("faketime").resolve()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.step(0)

    def step(self, seconds: float) -> None:
        """Put the clock this far from the true time, ahead or (negative) behind."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+}\n")
        new.replace(self._file)  # a reader must never see half of it
