"""Redis's protocol (RESP2), as much of it as scripts answer with. redis-py's own parser costs a third of a call."""

from __future__ import annotations

from typing import Any

from redis.exceptions import AskError, MovedError, NoScriptError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

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
            items: list[Any] = []
            at = end + 2
            for _ in range(count):
                if data[at : at + 1] == b":":  # most are numbers: not worth a call each
                    end = data.find(b"\r\n", at)
                    if end < 0:
                        raise Incomplete
                    items.append(int(data[at + 1 : end]))
                    at = end + 2
                else:
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
    raise ResponseError(f"unexpected reply: {data[at:end][:40]!r}")


def parse_usual(data: bytes) -> Any:
    """The reply, if it is one of those that most calls get: a number, or up to nine of them. Else None."""
    if data == b":1\r\n":  # released
        return 1
    if data[-2:] == b"\r\n":
        if data[:9] == b"*3\r\n:1\r\n:":  # granted
            token, _, now = data[9:-2].partition(b"\r\n:")
            return [1, int(token), int(now)] if token.isdigit() and now.isdigit() else None
        if data[:1] == b":" and data.count(b"\n") == 1:
            return int(data[1:-2])
        if data[:1] == b"*" and data[2:5] == b"\r\n:":
            words = data[5:-2].split(b"\r\n:")
            if len(words) == data[1] - 48 and data.count(b"\n") == len(words) + 1:
                return [int(word) for word in words]
    return None


class Inbox:
    """What has come over a connection that listens, message by message, however it was cut up on its way."""

    def __init__(self, channel: bytes) -> None:
        self._data = b""
        self._start = b"*3\r\n$7\r\nmessage\r\n$%d\r\n%b\r\n" % (len(channel), channel)

    def add(self, data: bytes) -> None:
        if not data:
            raise RedisConnectionError("the server has closed the connection")
        self._data += data

    def take(self) -> bytes | None:
        """What the next message brings; empty when it is but a sign of life; None when there is no whole one yet.

        An error reply is raised."""
        data = self._data
        if not data:
            return None
        is_news = data.startswith(self._start)
        try:
            message, at = parse(data, len(self._start) if is_news else 0)
        except Incomplete:
            return None
        self._data = data[at:]
        if isinstance(message, Exception):
            raise message
        return message if is_news else b""


def make_error(text: str) -> ResponseError:
    """As redis-py has it, where we tell errors apart by their class."""
    code, _, rest = text.partition(" ")
    if code in _ELSEWHERE:
        elsewhere: ResponseError = _ELSEWHERE[code](rest)
        return elsewhere
    return _ERRORS.get(code, ResponseError)(text)
