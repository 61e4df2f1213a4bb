"""What happens to all ``Locks`` of the process when it forks, and when the interpreter exits."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import TYPE_CHECKING

from ..core import clock
from ..core.log import ERROR, log
from .timer import timer

if TYPE_CHECKING:
    from ..core.registry import Registry

EXIT_LIMIT = 1.0
"""How long releasing leases may delay the interpreter's exit."""


registries: weakref.WeakSet[Registry] = weakref.WeakSet()
owing: set[Registry] = set()
"""Registries that still have to give something back. Kept alive until then."""


def _forked() -> None:
    timer.after_fork()
    owing.clear()
    for core in list(registries):
        core.after_fork()


def _at_exit() -> None:
    ends = clock.now() + EXIT_LIMIT
    cores = {*registries, *owing}
    while cores:
        share = max(0.0, ends - clock.now()) / len(cores)  # a store that does not answer leaves time for the others
        core = cores.pop()
        if not core.finished or any(owed.until > clock.now() for owed in list(core.unsettled)):
            try:
                core.at_exit(share)
            except Exception as error:  # the others still have leases to release
                log(ERROR, "releasing leases at exit failed: %s", error, exc=error)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
