"""One call of the function, measured."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ...errors import ShuttingDown


class Ran(NamedTuple):
    """One call of the function."""

    started: datetime
    duration: float
    result: Any
    error: Exception | None


class MeasuredCall:
    """Measures a call of the function: ``with MeasuredCall() as call: call.result = function()``. Keeps an Exception in
    ``ran.error``."""

    def __init__(self) -> None:
        self.result: Any = None

    def __enter__(self) -> MeasuredCall:
        self._started, self._begun = datetime.now(UTC), time.monotonic()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.ran = Ran(self._started, time.monotonic() - self._begun, self.result, None)
        if not isinstance(error, Exception) or isinstance(error, ShuttingDown):
            return False  # interrupted, cancelled, exiting or drained: no failure of the work
        self.ran = self.ran._replace(error=error)
        return True
