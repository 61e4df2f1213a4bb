"""The command ``leasehold``. Start-up time matters: each module is imported only when it is needed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .options import COMMANDS, HOLDING, NAMES, Options, UsageError, parse
from .say import say

if TYPE_CHECKING:
    from typing import NoReturn

USAGE, UNAVAILABLE, CANNOT_WRITE, NOT_READY = 2, 69, 74, 78
"""Exit codes: 2 by convention, the others from sysexits.h."""


def main() -> NoReturn:
    """The entry point. Ends the process with ``os._exit``: finalizing the interpreter takes a tenth of a short run.

    An SQLite connection is left to the kernel: see ``SqliteThreads.leave``.
    """
    if any("://" in word for word in sys.argv):
        from .passwords import hide_arguments

        hide_arguments()
    try:
        output, code = command(sys.argv[1:])
        if output:
            code = _print(output) or code
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:
        from .passwords import print_error

        print_error(error)
        code = 70  # EX_SOFTWARE: a bug
    os._exit(code)


def command(words: list[str]) -> tuple[str, int]:
    """Carry out a command line. Returns what to print and the exit code."""
    try:
        return _carry_out(parse(words))
    except UsageError as error:
        asked = next((f" {word}" for word in words if word in COMMANDS), "")
        say(f"{_hidden(error)} (see `leasehold{asked} --help`)")
        return "", USAGE
    except Exception as error:
        from ..errors import StoreError, StoreUnavailable

        driver_missing = isinstance(error, ModuleNotFoundError) and error.__cause__ is not None
        if not (isinstance(error, StoreError) or driver_missing):
            raise
        say(_hidden(error))
        return "", UNAVAILABLE if isinstance(error, StoreUnavailable) else NOT_READY


def _hidden(text: object) -> str:
    from .passwords import hidden

    return hidden(str(text))


def _carry_out(options: Options) -> tuple[str, int]:
    if options.help:
        from . import usage

        return usage.page(options.command), 0
    if options.version:
        from .. import __version__

        return f"leasehold {__version__}\n", 0
    if options.command in HOLDING:
        if not hasattr(os, "fork"):
            raise UsageError(
                f"{options.command} needs a system with process groups and signals, such as Linux or macOS"
            )
        from .run import run

        return "", run(options)
    if options.command in ("doctor", "init"):
        from .admin import admin

        output, code = admin(options)
        return _hidden(output), code
    if options.command == "bench":
        from .bench import bench

        return bench(options)
    if options.command == "completion":
        from .completion import script

        return script(options.name), 0
    if options.command == NAMES:
        from .completion import names

        return names(options), 0
    from .look import look

    return look(options)


def _print(output: str) -> int:
    import signal

    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that closes the pipe ends this process silently
    data = output.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError as error:
        say(f"cannot write the output: {error.strerror}")
        return CANNOT_WRITE
    return 0
