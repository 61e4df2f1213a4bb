"""How the command opens its store and leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import connect
from ..core import log
from .options import UsageError
from .say import say

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from ..threads.locks import Locks
    from .options import Options

    P = ParamSpec("P")
    T = TypeVar("T")

_SAID_OTHERWISE = ("lost", "unavailable", "release_failed")
"""Events that end a command. The command prints its own message for them."""


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


def _show(message: str, event: str | None) -> None:
    """Print a warning of the library. The command does not use ``logging``, which is slow to load."""
    if event not in _SAID_OTHERWISE:
        say(message)
