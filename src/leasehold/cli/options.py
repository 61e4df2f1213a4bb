"""Parses a command line into checked options.

Written by hand: ``argparse`` would add 8 ms to the start of ``leasehold run``, and cannot leave the words
after NAME and its options as they are, which ``run`` and ``once`` need for COMMAND.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .values import OneOf, count, duration, exit_code, leases, limit, names, period, processes, shown, text, ttl

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
        """The lease's name; for ``ls`` and ``completion names`` a prefix of names; for ``completion`` the shell."""
        self.json = False
        self.force = False
        # ``init``
        self.print_sql = False
        self.from_legacy = False
        self.legacy: list[str] = []
        self.legacy_tables: list[str] = []
        self.legacy_zone: str | None = None
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
        self.verbose = False
        self.limit: int | None = None
        self.shared = False
        self.min_hold: float | None = None
        self.kill_after: float | None = None
        self.on_busy_exit = BUSY
        self.on_unavailable = "fail"
        # ``once`` and ``forget``
        self.work_version: str | None = None
        self.per: float | str | None = None
        self.retries = 0
        self.keep = 100


_EVERYWHERE: Known = {
    "--url": ("url", text),
    "--namespace": ("namespace", text),
    "-h": ("help", None),
    "--help": ("help", None),
}
_LOOK: Known = {"--json": ("json", None), **_EVERYWHERE}
_HOLD: Known = {
    "--ttl": ("ttl", ttl),
    "-w": ("timeout", duration),
    "--timeout": ("timeout", duration),
    "-n": ("no_wait", None),
    "--no-wait": ("no_wait", None),
    "--kill-after": ("kill_after", duration),
    "--on-busy-exit": ("on_busy_exit", exit_code),
    "--owner": ("owner", text),
    "-v": ("verbose", None),
    "--verbose": ("verbose", None),
    **_EVERYWHERE,
}
OPTIONS: Mapping[str, Known] = {
    "": {**_EVERYWHERE, "--version": ("version", None)},
    "run": {
        "--limit": ("limit", limit),
        "--shared": ("shared", None),
        "--min-hold": ("min_hold", duration),
        "--on-unavailable": ("on_unavailable", OneOf("fail", "skip", "run")),
        **_HOLD,
    },
    "once": {
        "--version": ("work_version", text),
        "--per": ("per", period),
        "--retries": ("retries", count),
        "--keep": ("keep", count),
        **_HOLD,
    },
    "history": _LOOK,
    "forget": _EVERYWHERE,
    "ls": _LOOK,
    "show": _LOOK,
    "break": {"--force": ("force", None), **_LOOK},
    "stats": _LOOK,
    "doctor": _LOOK,
    "init": {
        "--print-sql": ("print_sql", None),
        "--from-legacy": ("from_legacy", None),
        "--legacy-collection": ("legacy", names),
        "--legacy-table": ("legacy_tables", names),
        "--legacy-zone": ("legacy_zone", text),
        "--dry-run": ("dry_run", None),
        **_LOOK,
    },
    "bench": {
        "--seconds": ("seconds", ttl),
        "--processes": ("processes", processes),
        "--leases": ("leases", leases),
        **_LOOK,
    },
    "completion": _EVERYWHERE,
    "help": _EVERYWHERE,
}
"""The options of each command, and ("") those before the command. Help and completions are made from this table."""
COMMANDS = tuple(filter(None, OPTIONS))
HOLDING = ("run", "once")
"""Commands that take NAME and then the words of COMMAND."""
SHELLS = ("bash", "zsh", "fish")
NAMES = "names"
"""``leasehold completion names [PREFIX]``: what the scripts call to complete the names of leases."""
_PLAIN = {
    **dict.fromkeys(("run", "once", "history", "show", "break"), (1, 1)),
    "forget": (1, 2),
    "ls": (0, 1),
    "completion": (1, 2),
    "help": (0, 1),
}
"""The least and the most plain words that a command takes; ``run`` and ``once`` take COMMAND after them."""


def parse(words: list[str]) -> Options:
    """Parse a command line. Raises UsageError."""
    options = Options()
    known, words = OPTIONS[""], list(words)
    plain: list[str] = []
    all_plain = False
    while words:
        word = words.pop(0)
        if word[:1] == "-" and word not in ("-", "--") and not all_plain:
            option, *rest = _apart(word, known)
            words[:0] = rest
            _set(options, known, option, words)
        elif not options.command:
            known = _known(word)
            options.command = word
        elif plain and options.command in HOLDING:
            # NAME was given, so COMMAND starts here, with or without "--". All words that follow belong to it.
            options.line = words if word == "--" else [word, *words]
            break
        elif word == "--" and not all_plain:
            all_plain = True
            if options.command in HOLDING and words and words[0][:1] != "-":
                raise UsageError(f"NAME is missing before '--': use leasehold {options.command} NAME -- COMMAND...")
        else:
            plain.append(word)
    if not (options.help or options.version):
        _check(options, plain)
    return options


def _known(command: str) -> Known:
    if command not in COMMANDS:
        raise UsageError(f"unknown command {shown(command)}{_meant(command, COMMANDS)}")
    return OPTIONS[command]


def _apart(word: str, known: Known) -> list[str]:
    """Short options that were written together: ``-nv`` is ``-n -v``, ``-w5s`` is ``-w 5s``."""
    if word.startswith("--") or len(word) == 2:
        return [word]
    for end in range(2, len(word) + 1):
        option = f"-{word[end - 1]}"
        if option not in known:
            return [word]
        if known[option][1] is not None:
            value = word[end:].removeprefix("=")
            return [*(f"-{letter}" for letter in word[1:end]), *([value] if value else [])]
    return [f"-{letter}" for letter in word[1:]]


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
        raise UsageError(f"a command is missing: use one of {', '.join(COMMANDS)}")
    least, most = _PLAIN.get(options.command, (0, 0))
    if options.command == "completion" and plain[:1] != [NAMES]:
        most = 1
    if len(plain) < least:
        shells = f"SHELL is missing: use {', '.join(SHELLS[:-1])} or {SHELLS[-1]}"
        raise UsageError(shells if options.command == "completion" else "NAME is missing: the name of the lease")
    if len(plain) > most:
        raise UsageError(f"unexpected argument {shown(plain[most])}")
    options.name = plain[0] if plain else ""
    if options.command == "forget":
        options.work_version = _version(plain[1:])
    if options.command == "help":
        _ask_for_help(options)
    elif options.command == "completion":
        _complete(options, plain)
    elif options.command in HOLDING:
        _check_holding(options)


def _version(words: list[str]) -> str | None:
    """VERSION of ``forget``; None if it was left out."""
    if words == [""]:
        raise UsageError("VERSION is empty: leave it out to forget all versions")
    return words[0] if words else None


def _ask_for_help(options: Options) -> None:
    """``leasehold help COMMAND`` is ``leasehold COMMAND --help``."""
    if options.name:
        _known(options.name)
    options.command, options.help = options.name, True


def _complete(options: Options, plain: list[str]) -> None:
    if plain[0] == NAMES:
        options.command = NAMES
        options.name = "".join(plain[1:])
    elif plain[0] not in SHELLS:
        raise UsageError(f"unknown shell {shown(plain[0])}{_meant(plain[0], SHELLS)}: use {', '.join(SHELLS)}")


def _check_holding(options: Options) -> None:
    if not options.line:
        raise UsageError("COMMAND is missing: the program to run while the lease is held")
    if options.no_wait and options.timeout is not None:
        raise UsageError("--timeout and --no-wait exclude each other: use one of them")
    if options.shared and options.limit is not None:
        raise UsageError("--limit and --shared exclude each other: use one of them")


def _meant(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
