"""``leasehold completion SHELL``: a script that completes the command in bash, zsh or fish.

The folder ``completions`` has a template for each shell. What it does not contain, commands and options, comes from
the table that the parser uses.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from .descriptions import SUMMARIES, Option, options_of
from .options import COMMANDS, HOLDING, SHELLS, Options

PATIENCE = 1.0
"""For so many seconds a shell may wait for the names of leases after the user has pressed Tab."""
MOST = 500
"""More names are of no use after one press of Tab."""

NAMED = ("ls", "show", "break")
"""Commands whose first plain word is the name of a held lease, or its start."""
PLAIN: Mapping[str, tuple[str, ...]] = {"completion": SHELLS, "help": COMMANDS}
"""Commands whose first plain word is one of a few."""


def script(shell: str) -> str:
    """The completion script for a shell."""
    text = (Path(__file__).parent / "completions" / f"leasehold.{shell}").read_text("utf-8")
    for marker, found in _MADE[shell]().items():
        text = text.replace(f"@{marker}@", found)
    return text


def names(options: Options) -> str:
    """The names of held leases that start with a prefix, one a line. Empty if the store does not answer in time, or
    at all: Tab must neither fail nor hang."""
    from ..core import log
    from .store import leave

    log.show = lambda message, fields: None
    timer = threading.Timer(PATIENCE, os._exit, (0,))
    timer.daemon = True
    timer.start()
    try:
        if _is_missing_file(options.url):
            return ""
        from .. import connect

        locks = connect(options.url, namespace=options.namespace)
        try:
            found = [lease.name for lease in islice(locks.leases(options.name), MOST)]
        finally:
            leave(locks)
    except Exception:
        return ""
    finally:
        timer.cancel()
    return "".join(f"{name}\n" for name in dict.fromkeys(found) if name.isprintable())


def _is_missing_file(url: str | None) -> bool:
    """Whether the store is a file that does not exist. Connecting would create it."""
    from ..stores.sqlite.file import path_of
    from ..stores.urls import given_or_default

    url = str(given_or_default(url))
    return url.lower().startswith("sqlite") and not os.path.exists(path_of(url))


# What the templates lack. Each function returns the text for each marker.


def _bash() -> dict[str, str]:
    options = [(command, option) for command in ("", *COMMANDS) for option in options_of(command)]
    valued = [(command, option) for command, option in options if option.value]
    return {
        "OPTIONS": "\n".join(
            f"    {command or repr('')}) printf '%s\\n' {' '.join(_flags(command))} ;;" for command in ("", *COMMANDS)
        ),
        "VALUES": "\n".join(f"    {_patterns(command, option)}) ;;" for command, option in valued),
        "CHOICES": "\n".join(
            f"    {_patterns(command, option)}) printf '%s\\n' {' '.join(option.choices)} ;;"
            for command, option in valued
            if option.choices
        ),
        "PLAIN": "\n".join(
            f"""        {command}) COMPREPLY=($(compgen -W "$(printf '%s\\n' {" ".join(words)})" -- "$cur")) ;;"""
            for command, words in PLAIN.items()
        ),
        "COMMANDS": " ".join(COMMANDS),
        "HOLDING": f"@({'|'.join(HOLDING)})",
        "NAMED": " | ".join(NAMED),
    }


def _flags(command: str) -> Iterator[str]:
    return (flag for option in options_of(command) for flag in option.flags)


def _patterns(command: str, option: Option) -> str:
    return " | ".join(f"'{command} {flag}'" for flag in option.flags)


def _zsh() -> dict[str, str]:
    return {
        "COMMANDS": "\n".join("        " + _quoted(f"{command}:{text}") for command, (_, text) in SUMMARIES.items()),
        "MAIN": "\n".join(f"        {spec} \\" for spec in _specs("")),
        "CASES": "\n".join(
            f"        {command})\n            _arguments -s{' -S' * (command in HOLDING)} \\\n"
            + " \\\n".join(f"                {spec}" for spec in (*_specs(command), *_plain_specs(command)))
            + " && ret=0\n            ;;"
            for command in COMMANDS
        ),
    }


def _specs(command: str) -> Iterator[str]:
    """The arguments of ``_arguments`` for the options of a command."""
    for option in options_of(command):
        exclusive = f"({' '.join(option.flags)})" if len(option.flags) > 1 else ""
        text = option.summary.replace("[", r"\[").replace("]", r"\]")
        for flag in option.flags:
            if not option.value:
                yield _quoted(f"{exclusive}{flag}[{text}]")
                continue
            value = option.value.replace(":", r"\:")
            choices = f"({' '.join(option.choices)})" if option.choices else " "
            yield _quoted(f"{exclusive}{flag}{'=' if flag.startswith('--') else '+'}[{text}]:{value}:{choices}")


def _plain_specs(command: str) -> tuple[str, ...]:
    if command in HOLDING:
        return "'1:NAME: '", "'(-)2:command:_command_names -e'", "'(-)*::arguments:_leasehold_command'"
    if command in NAMED:
        return ("'1:NAME:_leasehold_names'",)
    return (f"'1:word:({' '.join(PLAIN[command])})'",) if command in PLAIN else ()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", r"'\''") + "'"


def _fish() -> dict[str, str]:
    valued = [(command, option) for command in ("", *COMMANDS) for option in options_of(command) if option.value]
    return {
        "VALUES": " ".join(f"'{command} {flag}'" for command, option in valued for flag in option.flags),
        "HOLDING": " ".join(HOLDING),
        "COMPLETE": "\n".join(_fish_lines()),
    }


def _fish_lines() -> Iterator[str]:
    for command, (_, text) in SUMMARIES.items():
        yield f"{_fish_at('-', 1)} -a {command} -d {_fish_quoted(text)}"
    for command in ("", *COMMANDS):
        for option in options_of(command):
            flags = " ".join(f"-{'l' if flag[1] == '-' else 's'} {flag.lstrip('-')}" for flag in option.flags)
            value = " -x" if option.value else ""
            value += f" -a '{' '.join(option.choices)}'" if option.choices else ""
            yield f"{_fish_at(command or '-', 'options')} {flags}{value} -d {_fish_quoted(option.summary)}"
    for command in NAMED:
        yield f"{_fish_at(command, 1)} -a '(__leasehold_names)'"
    for command, words in PLAIN.items():
        yield f"{_fish_at(command, 1)} -a '{' '.join(words)}'"
    for command in HOLDING:
        yield f"{_fish_at(command, 'rest')} -a '(__leasehold_rest)'"


def _fish_at(command: str, stage: str | int) -> str:
    return f"complete -c leasehold -n '__leasehold_at {command} {stage}'"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_MADE = {"bash": _bash, "zsh": _zsh, "fish": _fish}
