"""What names, owners, namespaces and data may look like: the same on every store, checked before any I/O."""

from __future__ import annotations

import os

from .typed import Any

MAX_NAME = 512
MAX_LABEL = 64
MAX_OWNER = 256
MAX_DATA = 4096


def text(value: object, what: str, longest: int, shortest: int = 1) -> str:
    """``value`` if it is text of the right length without control characters and lone surrogates."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if not shortest <= len(value) <= longest:
        raise ValueError(f"{what} must have {shortest} to {longest} characters, not {len(value)}")
    if value.isprintable():  # the usual case: nothing that needs a closer look
        return value
    for place, char in enumerate(value):
        code = ord(char)
        if code < 0x20 or 0x7F <= code < 0xA0:
            raise ValueError(f"{what} has a control character (U+{code:04X}) at position {place}")
        if 0xD800 <= code < 0xE000:
            raise ValueError(f"{what} has a lone surrogate (U+{code:04X}) at position {place}")
    return value


def name(value: object) -> str:
    return text(value, "a lease's name", MAX_NAME)


def data_text(value: Any) -> str | None:
    """``value`` as JSON, at most 4 KiB; None for None."""
    if value is None:
        return None
    import json

    try:
        encoded = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(encoded.encode())  # fails on lone surrogates, which not every store can keep
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"data must be JSON: {error}") from error
    if size > MAX_DATA:
        raise ValueError(f"data must fit into {MAX_DATA} bytes as JSON, not {size}")
    return encoded


def make_owner() -> str:
    """Who this process is, for people: host, pid and a random part."""
    host = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "host")
    host = "".join(char for char in host if char.isprintable())[:128] or "host"
    return f"{host}_{os.getpid()}_{os.urandom(4).hex()}"
