"""Keeps passwords out of what the command prints, and out of the list of processes.

The stores do not put passwords into their messages. A driver may, or an error that nobody expected.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from urllib.parse import parse_qsl, unquote

SHORTEST = 3
"""A shorter password is not looked for in a text: it would be found in every other word."""


def hidden(text: str) -> str:
    """The text without the passwords of the URLs on the command line and in $LEASEHOLD_URL."""
    found = {word for url in _urls() for password in _passwords(url) for word in (password, unquote(password))}
    for password in sorted(found, key=len, reverse=True):  # one may contain another
        if len(password) >= SHORTEST:
            text = text.replace(password, "…")
        elif password:
            text = text.replace(f":{password}@", ":…@")
    return text


def print_error(error: BaseException) -> None:
    """Print a traceback to standard error, without passwords."""
    from traceback import format_exception

    os.write(2, hidden("".join(format_exception(error))).encode("utf-8", "backslashreplace"))


def hide_arguments() -> None:
    """Overwrite the passwords in this process's command line, which every user of the machine can read.

    Possible on Linux only, and only after the process has started: $LEASEHOLD_URL is safer."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            line = file.read()
        masked = line
        for password in (password for url in _urls() for password in _passwords(url) if password in url):
            masked = masked.replace(os.fsencode(password), b"x" * len(os.fsencode(password)))
        with open("/proc/self/stat", "rb") as file:
            start = int(file.read().rpartition(b")")[2].split()[45])  # arg_start of proc_pid_stat(5)
        if masked != line:
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(start)
                memory.write(masked)
    except (OSError, ValueError, IndexError):
        pass  # no /proc, or no right to write there


def _urls() -> Iterator[str]:
    from ..stores.urls import ENVIRONMENT

    for word in (*sys.argv[1:], os.environ.get(ENVIRONMENT, "")):
        if "://" in word:
            yield word


def _passwords(url: str) -> Iterator[str]:
    """The parts of a URL that may be a password, as they are written there. The URL may be wrong in any way."""
    rest = url.partition("://")[2]
    user, at, _ = rest.rpartition("@")
    if at and ":" in user:
        yield user.partition(":")[2]
    yield from (value for name, value in parse_qsl(rest.partition("?")[2]) if "pass" in name.lower())
