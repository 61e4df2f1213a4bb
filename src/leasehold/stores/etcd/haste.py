"""Who comes first where calls wait for each other, and how long one of them may take of the time that is left."""

from __future__ import annotations

from typing import Any

from ...core.protocol import Steps, T
from .wire import Haste


def patient(steps: Steps[T]) -> Steps[T]:
    """The same, but its calls come after all that renew, release and claim."""
    return _with(steps, lambda call: call._replace(haste=Haste.NONE))


def urgent(steps: Steps[T]) -> Steps[T]:
    """The same, but its calls wait for none that is not urgent."""
    return _with(steps, lambda call: call._replace(haste=Haste.MOST))


def hasty(steps: Steps[T]) -> Steps[T]:
    """The same, but no call of it takes more than half of the time that is left."""
    return _with(steps, lambda call: call._replace(share=call.share / 2))


def _with(steps: Steps[T], changed: Any) -> Steps[T]:
    try:
        call = next(steps)
        while True:
            try:
                answer = yield changed(call)
            except Exception as error:
                call = steps.throw(error)
            else:
                call = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()
