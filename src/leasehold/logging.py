"""Structured logs with the standard library: one JSON object a line, with every field of an event. ::

import logging
from leasehold.logging import JsonFormatter

handler = logging.StreamHandler()
handler.setFormatter(JsonFormatter())
logging.getLogger().addHandler(handler)
logging.getLogger("leasehold").setLevel(logging.INFO)
"""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from typing import Any

__all__ = ["JsonFormatter"]

_PREFIX = "lease_"


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON. It may format the records of other libraries too.

    Each object has ``time`` (ISO 8601, UTC), ``level``, ``logger`` and ``message``; ``exception`` if there is one; and
    the fields of leasehold's records, without their prefix: ``event``, ``name``, ``token``, ``owner``, ``reason``,
    ``store``, ``kind``, ``waited``, ``held``, ``remaining`` and what a record has beyond these. Fields that are None
    are left out. Durations are in seconds. ::

        handler.setFormatter(JsonFormatter())
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in vars(record).items():
            if key.startswith(_PREFIX) and value is not None:
                line.setdefault(key.removeprefix(_PREFIX), _plain(value))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line)


def _plain(value: object) -> object:
    """The value, if it is JSON; else as text."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else str(value)
    return value if isinstance(value, (str, int, bool)) else str(value)
