"""How long things last: the first term, a place in the queue, margins, pauses between polls; and their checks."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Required, TypeAlias, TypedDict

from . import checks, durations

if TYPE_CHECKING:
    import random

Duration: TypeAlias = float | str | timedelta
"""What a caller may give as a duration: seconds, text such as "30s", or a timedelta."""

DEFAULT_TTL = 30.0
LONGEST_TTL = 366 * 86_400.0
INFINITE = float("inf")
CALL_LIMIT = 5.0
"""The longest call to a store. A call is shorter where a later answer would be useless."""
UNAVAILABLE_LIMIT = 30.0
"""How long an acquire without a timeout retries while every call fails."""
FIRST_TERM = 0.7
"""The ttl that a release grants to the next waiter: enough for a live waiter to claim it, and the delay that a dead
waiter causes."""
WAITER_TTL = 15.0
"""How long a place in the queue lasts unless its waiter refreshes it."""
FALLBACK = 5.0
"""How often a waiter checks the store by itself while push works."""
STAGGER = 0.2
"""How much later each further waiter in the queue checks after the holder's expiry, so that not all check at once."""


class Timing(NamedTuple):
    """The checked timing of one lock."""

    ttl: float
    margin: float
    renew_every: float
    renew: bool
    max_hold: float | None
    min_hold: float
    beat_every: float | None
    max_renew_failures: int
    drift: float | None
    first_term: float
    """How long a pushed first term can be trusted; 0 or less if the waiter has to claim it with a call."""
    kept: bool
    """Whether renewal ends only with the release: no ``max_hold``, no ``beat_every``."""
    call_limit: float

    def margin_of(self, ttl: float) -> float:
        """The safety margin of a term of ``ttl`` seconds."""
        return safety_margin(ttl, self.drift)


def seconds(value: object, what: str, *, zero: bool = False) -> float:
    """A duration as a finite number of seconds above zero; with ``zero``, zero is allowed."""
    value = number(value, what)
    if not 0 <= value < INFINITE or (value == 0 and not zero):
        raise ValueError(f"{what} must be {'0 or more' if zero else 'above 0'} and finite, not {value}")
    if value > LONGEST_TTL:
        raise ValueError(f"{what} must be at most {LONGEST_TTL:.0f} s (a year), not {value}")
    return float(value)


def number(value: object, what: str) -> float:
    """A duration in seconds. Raises ValueError for text that is none, TypeError for anything else. Its size is not
    checked."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str):
        raise TypeError(f'{what} must be seconds, a timedelta or text such as "30s", not {type(value).__name__}')
    parsed = durations.parse(value)
    if parsed is None:
        raise ValueError(f"{what}: invalid duration {value!r}: {durations.USE}")
    return parsed


def patience(timeout: object) -> float | None:
    """A ``timeout`` in seconds, zero or more; None if it is infinite."""
    if timeout is False or timeout is True:
        raise TypeError("timeout must be a duration, not a bool: to try without waiting, use try_acquire()")
    if timeout == -1:
        raise ValueError("timeout must be 0 or more, not -1: to wait as long as it takes, leave it out")
    return None if timeout == INFINITE else seconds(timeout, "timeout", zero=True)


class _Preset(NamedTuple):
    ttl: float
    renew_every: float
    heartbeat: float


class Preset(_Preset):
    """The timing of a kind, for ``connect(kinds=...)``, with ``ttl > renew_every > heartbeat``.

    Made of durations; its fields are in seconds.

    Fields:
        ttl: how long a term lasts.
        renew_every: how often a lease is renewed.
        heartbeat: how often a group member sends a heartbeat. It has failed after three missed ones.

    Example::

        locks = leasehold.connect("memory://", kinds={"batch": leasehold.Preset("2m", "1m", 20)})
        assert locks.lock("nightly", kind="batch").acquire().ttl == 120
    """

    __slots__ = ()

    def __new__(cls, ttl: Duration, renew_every: Duration, heartbeat: Duration) -> Preset:
        every = number(renew_every, "renew_every")
        return super().__new__(cls, number(ttl, "ttl"), every, number(heartbeat, "heartbeat"))

    @property
    def failure(self) -> float:
        """How long a silent group member counts as alive, in seconds: three heartbeats."""
        return 3 * self.heartbeat


class PresetFields(TypedDict, total=False):
    """A preset as a mapping. ``failure`` is 3 · heartbeat: either may be given."""

    ttl: Required[Duration]
    renew_every: Duration
    heartbeat: Duration
    failure: Duration


PRESETS: Mapping[str, Preset] = {
    "workflow": Preset(300.0, 180.0, 30.0),
    "node": Preset(120.0, 72.0, 30.0),
    "resource": Preset(30.0, 18.0, 10.0),
}


def preset(kind: str, value: object) -> Preset:
    """The preset that ``connect(kinds={kind: value})`` defines. ``value`` is a Preset or a mapping of its fields."""
    where = f"kinds[{kind!r}]"
    if isinstance(value, Mapping):
        unknown = set(value) - {"ttl", "renew_every", "heartbeat", "failure"}
        if unknown or "ttl" not in value:
            raise ValueError(f"{where} accepts ttl, renew_every, heartbeat and failure; ttl is required")
        ttl = seconds(value["ttl"], f"{where} ttl")
        every = seconds(value.get("renew_every", 0.6 * ttl), f"{where} renew_every")
        failure = None if "failure" not in value else seconds(value["failure"], f"{where} failure")
        beat = seconds(value.get("heartbeat", every / 2 if failure is None else failure / 3), f"{where} heartbeat")
        if failure is not None and abs(failure - 3 * beat) > 1e-9 * failure:
            raise ValueError(f"{where} needs failure = 3·heartbeat = {3 * beat:g} s, got {failure:g} s")
        value = Preset(ttl, every, beat)
    if not isinstance(value, Preset):
        raise TypeError(f"{where} must be a mapping or a Preset, not {type(value).__name__}")
    if not value.ttl > value.renew_every > value.heartbeat > 0:
        raise ValueError(f"{where} needs ttl > renew_every > heartbeat > 0, got {tuple(value)}")
    return value


def safety_margin(ttl: float, drift: float | None) -> float:
    """How long before the store's expiry a holder stops trusting its lease."""
    return 0.01 * ttl + 0.05 if drift is None else 2 * drift


def make_timing(
    *,
    ttl: Duration,
    renew_every: Duration | None = None,
    renew: bool = True,
    max_hold: Duration | None = None,
    min_hold: Duration | None = None,
    beat_every: Duration | None = None,
    drift: Duration | None = None,
    max_renew_failures: int = 3,
    share: float = 1 / 3,
) -> Timing:
    """Check the options against each other. Without ``renew_every``, renewal is due after ``share`` of the ttl."""
    checks.flag(renew, "renew")
    ttl = seconds(ttl, "ttl")
    drift = None if drift is None else seconds(drift, "drift", zero=True)
    margin = safety_margin(ttl, drift)
    if margin >= ttl:
        why = f"2·drift = {margin:g} s" if drift is not None else f"1 % of ttl + 50 ms = {margin:g} s"
        raise ValueError(f"ttl of {ttl:g} s is too short: it must be longer than its safety margin ({why})")
    first = min(FIRST_TERM, ttl)
    first -= safety_margin(first, drift)
    every = share * ttl if renew_every is None else seconds(renew_every, "renew_every")
    if renew and every >= ttl - margin:
        raise ValueError(f"renew_every of {every:g} s must be below ttl − margin = {ttl - margin:g} s")
    if not renew and (beat_every is not None or renew_every is not None):
        raise ValueError("renew=False excludes renew_every and beat_every")
    longest = None if max_hold is None else seconds(max_hold, "max_hold")
    shortest = 0.0 if min_hold is None else seconds(min_hold, "min_hold", zero=True)
    if longest is not None and shortest > longest:
        raise ValueError(f"min_hold of {shortest:g} s is longer than max_hold of {longest:g} s")
    timing: Timing = _shared(
        Timing(
            ttl,
            margin,
            every,
            renew,
            longest,
            shortest,
            None if beat_every is None else seconds(beat_every, "beat_every"),
            _failures(max_renew_failures),
            drift,
            first,
            renew and max_hold is None and beat_every is None,
            min(CALL_LIMIT, ttl - margin),
        )
    )
    return timing


def _failures(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("max_renew_failures must be an int")
    if value < 1:
        raise ValueError(f"max_renew_failures must be 1 or more, not {value}")
    return value


def check_poll(poll: Any, backoff: str) -> tuple[float, float]:
    """The pair (min, max) of ``poll`` in seconds. Raises ValueError or TypeError."""
    given: Any = None if isinstance(poll, str) else poll
    try:
        low, high = given
    except (TypeError, ValueError):
        raise ValueError(f"poll must be a pair (min, max) of durations, not {poll!r}") from None
    low, high = seconds(low, "poll's min"), seconds(high, "poll's max")
    if low > high:
        raise ValueError(f"poll's min of {low:g} s is above its max of {high:g} s")
    if backoff not in ("adaptive", "random"):
        raise ValueError(f"backoff must be 'adaptive' or 'random', not {backoff!r}")
    pair: tuple[float, float] = _shared((low, high))
    return pair


@functools.lru_cache(maxsize=256)
def _shared(value: Any) -> Any:
    """Return the same object for equal values, to save memory: ten thousand locks share a handful of timings."""
    return value


def pauses(poll: tuple[float, float], backoff: str, rng: random.Random | None = None) -> Iterator[float]:
    """How long to sleep before each poll where there is no push (``poll`` and ``backoff`` in docs/reference.md)."""
    if rng is None:
        import random

        rng = random.Random()
    low, high = poll
    grown = low
    while True:
        if backoff == "random":
            yield rng.uniform(low, high)
        else:
            yield min(high, max(low, grown * rng.uniform(0.8, 1.2)))
            grown = min(grown * 1.5, high * 2)
