"""What the fixture ``step_clock`` is: see conftest."""

from collections.abc import Callable

StepClock = Callable[[float], None]
