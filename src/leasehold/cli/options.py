"""Parses a command line into checked options.

Written by hand: ``argparse`` would add 8 ms to the start of ``leasehold run``, and cannot leave the words
after NAME and its options as they are, which ``run`` and ``once`` need for COMMAND.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    # For each option: the attribute that it sets, and the function that parses its value (None: a switch).
    Known: TypeAlias = Mapping[str, tuple[str, Callable[[str], object] | None]]

BUSY = 75
"""EX_TEMPFAIL of sysexits.h: try again later. The default exit code when the lease is busy."""


class UsageError(Exception):
    """The command line is wrong; the message says where and why."""


class Options:
    """The options of a command line, with their defaults."""

    def __init__(self) -> None:
        self.command = ""
        self.help = False
        self.version = False
        self.url: str | None = None
        self.namespace = ""
        self.name = ""
        """The lease's name; for ``ls`` a prefix of names."""
        self.json = False
        self.force = False
        # ``init``
        self.print_sql = False
        self.from_legacy = False
        self.legacy: list[str] = []
        self.dry_run = False
        # ``bench``
        self.seconds = 2.0
        self.processes = 4
        self.leases = 100
        # ``run`` and ``once``
        self.line: list[str] = []
        self.owner: str | None = None
        self.ttl = 30.0
        self.timeout: float | None = None
        self.no_wait = False
        self.min_hold: float | None = None
        self.kill_after: float | None = None
        self.on_busy_exit = BUSY
        self.on_unavailable = "fail"
        # ``once``
        self.work_version = "1"
        self.retries = 0


def shown(word: str) -> str:
    """A word of the command line, quoted for a message. A URL is cut after its scheme: it may contain a password."""
    scheme, separator, _ = word.partition("://")
    return f"{scheme}://…" if separator else repr(word)


def text(word: str) -> str:
    return word


def names(word: str) -> list[str]:
    """Names, separated by commas."""
    found = [name for name in word.split(",") if name]
    if not found:
        raise ValueError("a name is missing: use NAME or NAME,NAME")
    return found


def duration(word: str) -> float:
    """Seconds: ``30``, ``30s``, ``500ms``, ``5m``, ``1.5h``, ``2d``."""
    number = word.rstrip("dhms")
    scale = _UNITS.get(word[len(number) :])
    digits = number.replace(".", "", 1)
    if scale is None or not (digits.isascii() and digits.isdigit()):  # float() alone would take nan, inf and 1_0
        raise ValueError(f"invalid duration {shown(word)}: use seconds, or a number with ms, s, m, h or d, such as 30s")
    return float(number) * scale


_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def ttl(word: str) -> float:
    seconds = duration(word)
    if not seconds:
        raise ValueError(f"invalid duration {shown(word)}: it must be above 0")
    return seconds


def processes(word: str) -> int:
    if not (word.isascii() and word.isdigit() and 2 <= int(word) <= 256):
        raise ValueError(f"invalid number {shown(word)}: use 2 to 256 processes")
    return int(word)


def leases(word: str) -> int:
    if not (word.isascii() and word.isdigit() and 1 <= int(word) <= 100_000):
        raise ValueError(f"invalid number {shown(word)}: use 1 to 100000 leases")
    return int(word)


def exit_code(word: str) -> int:
    if not (word.isascii() and word.isdigit() and int(word) <= 255):
        raise ValueError(f"invalid exit code {shown(word)}: use 0 to 255")
    return int(word)


def count(word: str) -> int:
    if not (word.isascii() and word.isdigit()):
        raise ValueError(f"invalid number {shown(word)}: use 0 or more")
    return int(word)


def when_unavailable(word: str) -> str:
    if word not in ("fail", "skip", "run"):
        raise ValueError(f"unknown value {shown(word)}: use fail, skip or run")
    return word


_EVERYWHERE: Known = {
    "--url": ("url", text),
    "--namespace": ("namespace", text),
    "--help": ("help", None),
    "-h": ("help", None),
}
_BEFORE: Known = {**_EVERYWHERE, "--version": ("version", None)}
_LOOK: Known = {**_EVERYWHERE, "--json": ("json", None)}
_HOLD: Known = {
    **_EVERYWHERE,
    "--owner": ("owner", text),
    "--ttl": ("ttl", ttl),
    "--timeout": ("timeout", duration),
    "--no-wait": ("no_wait", None),
    "--kill-after": ("kill_after", duration),
    "--on-busy-exit": ("on_busy_exit", exit_code),
}
_OF: Mapping[str, Known] = {
    "run": {
        **_HOLD,
        "--min-hold": ("min_hold", duration),
        "--on-unavailable": ("on_unavailable", when_unavailable),
    },
    "once": {**_HOLD, "--version": ("work_version", text), "--retries": ("retries", count)},
    "ls": _LOOK,
    "show": _LOOK,
    "break": {**_LOOK, "--force": ("force", None)},
    "stats": _LOOK,
    "doctor": _LOOK,
    "init": {
        **_LOOK,
        "--print-sql": ("print_sql", None),
        "--from-legacy": ("from_legacy", None),
        "--legacy-collection": ("legacy", names),
        "--dry-run": ("dry_run", None),
    },
    "bench": {
        **_LOOK,
        "--seconds": ("seconds", ttl),
        "--processes": ("processes", processes),
        "--leases": ("leases", leases),
    },
}
COMMANDS = tuple(_OF)
_HOLDING = ("run", "once")
_NAMES = {"run": (1, 1), "once": (1, 1), "ls": (0, 1), "show": (1, 1), "break": (1, 1)}
"""The least and the most plain words that a command takes; ``run`` and ``once`` take COMMAND after them."""


def parse(words: list[str]) -> Options:
    """Parse a command line. Raises UsageError."""
    options = Options()
    known, words = _BEFORE, list(words)
    plain: list[str] = []
    all_plain = False
    while words:
        word = words.pop(0)
        if word[:1] == "-" and word not in ("-", "--") and not all_plain:
            _set(options, known, word, words)
        elif not options.command:
            if word not in _OF:
                raise UsageError(f"unknown command {shown(word)}{_meant(word, _OF)}")
            options.command, known = word, _OF[word]
        elif plain and options.command in _HOLDING:
            # NAME was given, so COMMAND starts here, with or without "--". All words that follow belong to it.
            options.line = words if word == "--" else [word, *words]
            break
        elif word == "--" and not all_plain:
            all_plain = True
        else:
            plain.append(word)
    if not (options.help or options.version):
        _check(options, plain)
    return options


def _set(options: Options, known: Known, word: str, rest: list[str]) -> None:
    """Set the option ``word``. Its value is the part after "=", or the next word."""
    option, equals, value = word.partition("=")
    if option not in known:
        raise UsageError(f"unknown option {shown(option)}{_meant(option, known)}")
    attribute, make = known[option]
    if make is None:
        if equals:
            raise UsageError(f"{option} takes no value")
        setattr(options, attribute, True)
        return
    if not equals:
        if not rest:
            raise UsageError(f"{option} needs a value")
        value = rest.pop(0)
    try:
        setattr(options, attribute, make(value))
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _check(options: Options, plain: list[str]) -> None:
    if not options.command:
        raise UsageError(f"a command is missing: use one of {', '.join(_OF)}")
    least, most = _NAMES.get(options.command, (0, 0))
    if len(plain) < least:
        raise UsageError("NAME is missing: the name of the lease")
    if len(plain) > most:
        raise UsageError(f"unexpected argument {shown(plain[most])}")
    options.name = plain[0] if plain else ""
    if options.command in _HOLDING:
        if not options.line:
            raise UsageError("COMMAND is missing: the program to run while the lease is held")
        if options.no_wait and options.timeout is not None:
            raise UsageError("--timeout and --no-wait exclude each other: use one of them")


def _meant(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
