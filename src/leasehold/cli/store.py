"""How the command opens its store and leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import connect
from ..core import log
from .options import UsageError
from .say import say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, ParamSpec, TypeVar

    from ..threads.locks import Locks
    from .options import Options

    P = ParamSpec("P")
    T = TypeVar("T")

said_otherwise = {"lost", "release_failed"}
"""Events for which the command prints its own message: those that end it, and those that it has told already."""
_LONG = 1.0
"""Seconds for which a store that is away has to be retried to be worth a line."""


def open_store(options: Options) -> Locks:
    """Connect to the store that the options name. Raises UsageError."""
    log.show = _show
    return checked(connect, options.url, namespace=options.namespace, owner=options.owner)


def checked(function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Call ``function`` with words of the command line. A ValueError becomes a UsageError."""
    try:
        return function(*args, **named)
    except ValueError as error:
        raise UsageError(str(error)) from error


def no_namespace(options: Options, why: str) -> None:
    """Refuse ``--namespace`` where it would have no effect."""
    if options.namespace:
        raise UsageError(f"{options.command} takes no --namespace: {why}")


def leave(locks: Locks) -> None:
    """The process is about to end: close the store, or only remove what would outlive the process."""
    core = locks._core
    if not hasattr(core.driver, "leave"):
        locks.close()
    elif not core.unsettled:  # otherwise the traces stay: by them others see that the holder of the rest has died
        core.closed, core.finished = "the command ends", True  # keeps the keeper from closing the driver
        core.driver.leave()


def _show(message: str, fields: Mapping[str, Any]) -> None:
    """Print a line of the library. The command does not use ``logging``, which is slow to load."""
    event = fields.get("event")
    ends = event == "unavailable" and fields.get("retry_for", 0.0) < _LONG
    if event not in said_otherwise and not ends:
        say(message)
