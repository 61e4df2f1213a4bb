"""Checks of names, owners, namespaces, data and functions: the same on every store, and made before any I/O."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Coroutine, Generator
from functools import partial
from typing import Any

MAX_NAME = 512
MAX_LABEL = 64
MAX_OWNER = 256
MAX_DATA = 4096
MAX_PERMITS = 1_000_000
"""The largest limit of a semaphore, and the number of readers that a read/write lock admits."""


def text(value: object, what: str, longest: int, shortest: int = 1) -> str:
    """Return ``value``. Raises TypeError if it is no str, ValueError if its length is wrong or it contains control
    characters or lone surrogates."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    if not shortest <= len(value) <= longest:
        raise ValueError(f"{what} must have {shortest} to {longest} characters, not {len(value)}")
    if value.isprintable():  # the usual case, checked fast
        return value
    for place, char in enumerate(value):
        code = ord(char)
        if code < 0x20 or 0x7F <= code < 0xA0:
            raise ValueError(f"{what} contains a control character (U+{code:04X}) at position {place}")
        if 0xD800 <= code < 0xE000:
            raise ValueError(f"{what} contains a lone surrogate (U+{code:04X}) at position {place}")
    return value


def name(value: object) -> str:
    return text(value, "a lease's name", MAX_NAME)


def prefix(value: object) -> str:
    """A prefix of names, which may be empty."""
    return text(value, "the prefix of names", MAX_NAME, shortest=0)


def flag(value: object, what: str) -> None:
    if value is not True and value is not False:
        raise TypeError(f"{what} must be True or False, not {type(value).__name__}")


def data_text(value: Any) -> str | None:
    """``value`` as JSON text of at most 4 KiB; None for None. Raises ValueError."""
    if value is None:
        return None
    try:
        encoded = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(encoded.encode())  # raises UnicodeEncodeError for lone surrogates, which not every store can keep
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"data cannot be encoded as JSON: {error}") from error
    if size > MAX_DATA:
        raise ValueError(f"data has {size} bytes as JSON; the limit is {MAX_DATA}")
    return encoded


def make_owner() -> str:
    """The default owner: host, process id and a random part."""
    host = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "host")
    host = "".join(char for char in host if char.isprintable())[:128] or "host"
    return f"{host}_{os.getpid()}_{os.urandom(4).hex()}"


# Functions are judged by the flags of their code: the module ``inspect`` takes longer to load than all of leasehold.

COROUTINE, GENERATOR, ASYNC_GENERATOR = "a coroutine", "a generator", "an async generator"
_FLAGS = ((0x80, COROUTINE), (0x200, ASYNC_GENERATOR), (0x20, GENERATOR))


def deferred(function: object) -> str | None:
    """What a call of the function returns instead of running its body: a coroutine, for example. None if a call runs
    the body, or that cannot be seen from the function."""
    while isinstance(function, partial):
        function = function.func
    for each in (function, type(function).__call__):
        flags = getattr(getattr(each, "__code__", None), "co_flags", 0)
        for flag, kind in _FLAGS:
            if flags & flag:
                return kind
    return None


def callback(value: object, what: str, tasks: bool) -> None:
    """Raise TypeError unless ``value`` is a callable whose call runs it: not a generator function, and a coroutine
    function only for ``tasks``."""
    if not callable(value):
        raise TypeError(f"{what} must be callable, not {type(value).__name__}")
    kind = deferred(value)
    if kind == COROUTINE and not tasks:
        raise TypeError(f"{what}: {called(value)} is async, so a thread cannot run it; use leasehold.aio")
    if kind in (GENERATOR, ASYNC_GENERATOR):
        raise TypeError(f"{what}: a call of {called(value)} only creates {kind}, which would never run")


def decorated(function: object, tasks: bool) -> None:
    """Raise TypeError unless each call runs the function from start to end, so that a lock can be held around it."""
    if isinstance(function, (classmethod, staticmethod)):
        raise TypeError(f"put @locks.lock(…) below @{type(function).__name__}")
    if isinstance(function, type):
        raise TypeError(f"a lock decorates functions, not classes: decorate the methods of {called(function)}")
    if not callable(function):
        raise TypeError(f"a lock decorates functions, not {type(function).__name__}: write @locks.lock(name)")
    kind, name = deferred(function), called(function)
    if kind in (GENERATOR, ASYNC_GENERATOR):
        block = "async with" if tasks else "with"
        raise TypeError(f"a call of {name} only creates {kind}: acquire inside it, with `{block} locks.lock(…):`")
    if kind == COROUTINE and not tasks:
        raise TypeError(f"{name} is async: use a lock of leasehold.aio")
    if kind is None and tasks:
        raise TypeError(f"{name} is not async: use a lock of leasehold.connect()")


def has_run(result: object, what: str, *, tasks: bool = False, generators: bool = False) -> None:
    """Raise TypeError, and close ``result``, if a function returned a coroutine instead of running its body; with
    ``generators``, also for a generator."""
    if isinstance(result, Coroutine):
        result.close()
        hint = "" if tasks else "; use leasehold.aio for async functions"
        raise TypeError(f"{what} returned {COROUTINE}, which would never run{hint}")
    if generators and isinstance(result, (Generator, AsyncGenerator)):
        if isinstance(result, Generator):  # an async generator that has not started needs no close
            result.close()
        kind = GENERATOR if isinstance(result, Generator) else ASYNC_GENERATOR
        raise TypeError(f"{what} returned {kind}, which would never run")


def only_skips(name: str) -> TypeError:
    """The error of a block, or of ``acquire``, on a lock with if_busy="skip": neither can leave its body out."""
    return TypeError(
        f'lock {name!r} has if_busy="skip", which is for decorated calls. A block cannot be skipped: use '
        "try_acquire(), which returns None if the name is busy"
    )


def patient(timeout: object) -> None:
    """Raise TypeError for the timeout of ``try_acquire`` that looks like the default of ``acquire``."""
    if timeout is None:
        raise TypeError(
            "the timeout of try_acquire() must be a duration, not None: to wait as long as it takes, use acquire()"
        )


def called(function: object) -> str:
    """A function's name for a message. (Its repr may show its arguments.)"""
    return str(getattr(function, "__qualname__", type(function).__name__))
