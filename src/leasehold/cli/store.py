"""The command's way to its store, and out of it."""

from __future__ import annotations

from .. import connect, log
from ..typed import TYPE_CHECKING
from .options import UsageError
from .say import say

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from ..lock import Locks
    from .options import Options

    P = ParamSpec("P")
    T = TypeVar("T")

_SAID_OTHERWISE = ("lost", "unavailable", "release_failed")
"""Events that end a command, which has its own words for them."""


def open_store(options: Options) -> Locks:
    """Leases of the store that the options name. Raises UsageError."""
    log.show = _show
    return checked(connect, options.url, namespace=options.namespace, owner=options.owner)


def checked(function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """What ``function`` makes of words of the command line. Raises UsageError."""
    try:
        return function(*args, **named)
    except ValueError as error:
        raise UsageError(str(error)) from error


def no_namespace(options: Options, why: str) -> None:
    """Refuse an option that would have no effect."""
    if options.namespace:
        raise UsageError(f"{options.command} takes no --namespace: {why}")


def leave(locks: Locks) -> None:
    """The process is about to end: take along what would outlast it."""
    core = locks._core
    if not hasattr(core.driver, "leave"):
        locks.close()
    elif not core.unsettled:  # else the store still has something of ours, and must see by our traces that we are dead
        core.closed, core.finished = "the command ends", True  # or the keeper would close what is left as it is
        core.driver.leave()


def _show(message: str, event: str | None) -> None:
    """Warnings of the library. ``logging`` is not set up for a command, and slow to load."""
    if event not in _SAID_OTHERWISE:
        say(message)
