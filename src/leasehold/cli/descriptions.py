"""What each command and each option is for: the words of the help pages and of the completions.

The options themselves are in ``options.OPTIONS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .options import OPTIONS
from .values import OneOf

if TYPE_CHECKING:
    from collections.abc import Mapping

SUMMARIES: Mapping[str, tuple[str, str]] = {
    "run": ("NAME -- COMMAND...", "hold the lease NAME while COMMAND runs"),
    "once": (
        "NAME -- COMMAND...",
        "run COMMAND once, however many start it; the others wait until it is done",
    ),
    "history": ("NAME", "what became of the work NAME: when it ran, where, and how it ended"),
    "forget": ("NAME [VERSION]", "forget that VERSION of the work NAME, or all of it, was done"),
    "ls": ("[PREFIX]", "what is held, by whom, for how long"),
    "show": ("NAME", "who holds NAME, since when, and with which data"),
    "break": ("NAME", "take a lease from its holder"),
    "stats": ("", "how many leases are held, of which kind and by whom"),
    "doctor": ("", "is the store fit for leases, and what to fix"),
    "init": ("", "create the tables, indexes or collections that the store needs"),
    "bench": ("", "how fast leases are on this store, from here"),
    "completion": ("SHELL", "completion for bash, zsh or fish"),
    "help": ("[COMMAND]", "the page of COMMAND"),
}
"""For each command: its plain words, and what it does."""

_AT_LOSS = "when the lease is lost, COMMAND gets SIGTERM, and SIGKILL this much later; must fit into --ttl, and is "

# For each attribute of Options: a sample value (empty for a switch), and what the option does. The completions show
# the text up to its first ";" or ":".
_DESCRIPTIONS: Mapping[str, tuple[str, str]] = {
    "url": (
        "URL",
        "the store; otherwise $LEASEHOLD_URL, otherwise a SQLite file in your state folder "
        "(~/.local/state/leasehold/leases.db), shared by this user's processes on this machine",
    ),
    "namespace": ("NAME", "keeps applications apart that share a store"),
    "help": ("", "this page"),
    "version": ("", "the version of leasehold"),
    "json": ("", "the answer as JSON, for programs"),
    "force": (
        "",
        "free the name at once; its holder may then still be working when the next one starts: use it only if you know "
        "that the holder is dead, or if the resource checks tokens",
    ),
    "print_sql": ("", "print the SQL for a migration of your own, and do nothing (PostgreSQL, MySQL, MariaDB)"),
    "from_legacy": (
        "",
        "deal with the locks of the code that leasehold replaces: on MongoDB first remove expired records, and refuse "
        "while one of them is held; on MySQL and MariaDB close the old table, and make leases of the locks in it",
    ),
    "legacy": ("NAME[,NAME]", "where these records are, if not in system_locks or distributed.locks"),
    "legacy_tables": ("NAME[,NAME]", "where these locks are, if not in the tables locks or workflow_locks"),
    "legacy_zone": ("+00:00", "the time zone of DATETIME columns of such a table; an offset from UTC"),
    "dry_run": ("", "only say what would be done"),
    "seconds": ("2s", "for how long each of the first five is measured"),
    "processes": ("4", "how many processes contend for one lease"),
    "leases": ("100", "how many leases are held at once"),
    "limit": ("N", "hold one of N permits, so that at most N holders run at once; all of them must use the same N"),
    "shared": ("", "share the lease with other --shared runs; a run without --shared excludes them all"),
    "min_hold": (
        "5s",
        "keep others out for at least this long from the start, even if COMMAND is quicker; for cron on hosts whose "
        "clocks differ",
    ),
    "on_unavailable": (
        "fail",
        "if the store cannot be reached (within --timeout, or for 30s): fail with 69; skip COMMAND, as if busy; or run "
        "it without the lease",
    ),
    "ttl": ("30s", "how long the lease lasts without renewal, and so how long others wait after a crash"),
    "timeout": ("10s", "how long to wait for the lease; otherwise as long as it takes"),
    "no_wait": ("", "do not wait"),
    "kill_after": ("5s", f"{_AT_LOSS}a sixth of it if that is less than 5s"),
    "on_busy_exit": ("75", "the exit code if the lease could not be acquired; 0 for cron, which mails about others"),
    "owner": ("NAME", "the name of the holder that others see; otherwise HOST_PID_RANDOM"),
    "verbose": ("", "say on standard error when the wait begins, and when the lease is acquired and released"),
    "work_version": ("V", "of the work (default 1): what was done as version 1 is done again as version 2"),
    "per": (
        "hour",
        "instead of --version: once per minute, hour, day or duration; slots of time begin at multiples in UTC, by the "
        "store's clock where it has one",
    ),
    "keep": ("100", "of how many versions to keep the details; older ones are only known as done or failed"),
    "retries": (
        "N",
        "how often a COMMAND that failed (exit status other than 0) is tried again, by the next process that comes; "
        "after that the failure stands, and everybody exits with its status",
    ),
}


class Option:
    """One option of a command: every way to write it, a sample of its value, and what it does."""

    def __init__(self, flags: list[str], value: str, choices: tuple[str, ...], text: str) -> None:
        self.flags = flags
        self.value = value
        """Empty for a switch."""
        self.choices = choices
        """The words that its value can be; empty if there are too many to list."""
        self.text = text

    @property
    def summary(self) -> str:
        """The first part of the text, for one line."""
        ends = [place for mark in ";:(" if (place := self.text.find(mark)) > 0]
        return self.text[: min(ends, default=len(self.text))].strip()


def options_of(command: str) -> list[Option]:
    """The options of a command, in the order of its page; of "", those before the command."""
    found: dict[str, Option] = {}
    for flag, (attribute, make) in OPTIONS[command].items():
        if attribute in found:
            found[attribute].flags.append(flag)
            continue
        choices = make.words if isinstance(make, OneOf) else ()
        value, text = _DESCRIPTIONS[attribute]
        found[attribute] = Option([flag], "|".join(choices) or value, choices, text)
    return list(found.values())
