"""What names, owners, namespaces, data and functions may look like: the same on every store, checked before any I/O."""

from __future__ import annotations

import os

from .typed import Any

MAX_NAME = 512
MAX_LABEL = 64
MAX_OWNER = 256
MAX_DATA = 4096
MAX_PERMITS = 1_000_000
"""Of a semaphore; also how many readers a read/write lock has room for."""


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


def prefix(value: object) -> str:
    """What the names that are listed begin with."""
    return text(value, "the prefix of names", MAX_NAME, shortest=0)


def flag(value: object, what: str) -> None:
    if value is not True and value is not False:
        raise TypeError(f"{what} must be True or False, not {type(value).__name__}")


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


# Functions. (By the flags of their code: the module ``inspect`` takes longer to load than the whole of leasehold.)

COROUTINE, GENERATOR, ASYNC_GENERATOR = "a coroutine", "a generator", "an async generator"
_FLAGS = ((0x80, COROUTINE), (0x200, ASYNC_GENERATOR), (0x20, GENERATOR))


def deferred(function: object) -> str | None:
    """What a call of the function gives in place of running its body, as far as can be seen; None when it is run."""
    from functools import partial

    while isinstance(function, partial):
        function = function.func
    for each in (function, type(function).__call__):
        flags = getattr(getattr(each, "__code__", None), "co_flags", 0)
        for flag, kind in _FLAGS:
            if flags & flag:
                return kind
    return None


def callback(value: object, what: str, tasks: bool) -> None:
    """Refuse what cannot be called, and what nobody would run: generator functions and, unless it is for ``tasks``,
    coroutine functions."""
    if not callable(value):
        raise TypeError(f"{what} must be callable, not {type(value).__name__}")
    kind = deferred(value)
    if kind == COROUTINE and not tasks:
        raise TypeError(f"{what}: {called(value)} is async, and threads would never run it; use leasehold.aio")
    if kind in (GENERATOR, ASYNC_GENERATOR):
        raise TypeError(f"{what}: a call of {called(value)} only makes {kind}, which nobody would run")


def decorated(function: object, tasks: bool) -> None:
    """Refuse what a lock cannot be held around: each call has to run the function from its start to its end."""
    if not callable(function):
        raise TypeError(f"a lock decorates functions, not {type(function).__name__}: give it as @locks.lock(name)")
    kind, name = deferred(function), called(function)
    if kind in (GENERATOR, ASYNC_GENERATOR):
        block = "async with" if tasks else "with"
        raise TypeError(f"a call of {name} only makes {kind}: take the lease inside of it, `{block} locks.lock(…):`")
    if kind == COROUTINE and not tasks:
        raise TypeError(f"{name} is async: use a lock of leasehold.aio")
    if kind is None and tasks:
        raise TypeError(f"{name} is not async: use a lock of leasehold.connect()")


def has_run(result: object, what: str, *, tasks: bool = False, generators: bool = False) -> None:
    """Refuse what a function has returned in place of running: a coroutine, or one of ``generators``. It is closed."""
    from collections.abc import AsyncGenerator, Coroutine, Generator

    if isinstance(result, Coroutine):
        result.close()
        hint = "" if tasks else "; use leasehold.aio for async functions"
        raise TypeError(f"{what} has returned {COROUTINE}, which nobody would run{hint}")
    if generators and isinstance(result, (Generator, AsyncGenerator)):
        if isinstance(result, Generator):  # an async one has nothing to be closed before it has begun
            result.close()
        kind = GENERATOR if isinstance(result, Generator) else ASYNC_GENERATOR
        raise TypeError(f"{what} has returned {kind}, which nobody would run")


def called(function: object) -> str:
    """A function's name. (What it looks like otherwise may tell its arguments.)"""
    return str(getattr(function, "__qualname__", type(function).__name__))
