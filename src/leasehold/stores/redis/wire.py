"""Redis's protocol (RESP2), as much of it as scripts answer with. redis-py's own parser costs a third of a call."""

from __future__ import annotations

from typing import Any

from redis.exceptions import AskError, MovedError, NoScriptError, ResponseError

_ERRORS = {"NOSCRIPT": NoScriptError}
_ELSEWHERE = {"MOVED": MovedError, "ASK": AskError}


class Incomplete(Exception):
    """The rest of the reply has not come yet."""


def parse(data: bytes, at: int) -> tuple[Any, int]:
    """The reply that starts at ``at``, and where the next one does. An error reply is an exception as a value."""
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    match data[at]:
        case 58:  # :
            return int(data[at + 1 : end]), end + 2
        case 42:  # *
            count = int(data[at + 1 : end])
            if count < 0:
                return None, end + 2
            items = []
            at = end + 2
            for _ in range(count):
                item, at = parse(data, at)
                items.append(item)
            return items, at
        case 36:  # $
            start = end + 2
            length = int(data[at + 1 : end])
            if length < 0:
                return None, start
            if len(data) < start + length + 2:
                raise Incomplete
            return data[start : start + length], start + length + 2
        case 43:  # +
            return data[at + 1 : end], end + 2
        case 45:  # -
            return make_error(data[at + 1 : end].decode("utf-8", "replace")), end + 2
    raise ResponseError(f"not understood: {data[at:end][:40]!r}")


def make_error(text: str) -> ResponseError:
    """As redis-py has it, where we tell errors apart by their class."""
    code, _, rest = text.partition(" ")
    if code in _ELSEWHERE:
        elsewhere: ResponseError = _ELSEWHERE[code](rest)
        return elsewhere
    return _ERRORS.get(code, ResponseError)(text)
