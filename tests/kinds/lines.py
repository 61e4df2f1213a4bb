"""Something that happens between two lines of the library, in the middle of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import leasehold

LIBRARY = str(Path(leasehold.__file__).parent)
TESTING = str(Path(LIBRARY, "testing"))


class AtLine:
    """Within its block: calls ``act`` before the ``place``-th line of the library that this thread runs, once."""

    def __init__(self, place: int, act: Callable[[], object], within: str = "") -> None:
        self.left = place
        self.act = act
        self.within = within
        """Only lines of files with this in their path."""
        self.where = ""
        """The line, once it has come."""
        self._before: Any = None

    def __call__(self, frame: FrameType, event: str, arg: object) -> AtLine | None:
        file = frame.f_code.co_filename
        if not file.startswith(LIBRARY) or file.startswith(TESTING) or self.within not in file[len(LIBRARY) :]:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.where = f"{Path(file).name}:{frame.f_lineno} {frame.f_code.co_name}"
                self.act()
        return self

    def __enter__(self) -> AtLine:
        self._before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.settrace(self._before)
