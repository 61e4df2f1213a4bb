"""Timing: pure numbers."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any, NamedTuple

import pytest
from scripted import T0, Scripted

from intercept import Intercepted
from leasehold import AcquireTimeout, Preset, connect
from leasehold.core.protocol import SECOND, Grant
from leasehold.core.timing import PRESETS, check_poll, make_timing, pauses, preset


def test_default_timing_is_as_documented() -> None:
    timing = make_timing(ttl=30)
    assert timing.renew_every == pytest.approx(10)
    assert timing.margin == pytest.approx(0.35)  # 1 % of ttl + 50 ms
    assert timing.max_renew_failures == 3


def test_drift_shortens_by_twice_itself() -> None:  # B5
    assert make_timing(ttl=10, drift=2).margin == 4
    with pytest.raises(ValueError, match=r"2·drift = 10 s"):
        make_timing(ttl=10, drift=5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": -1}, "ttl"),
        ({"ttl": math.nan}, "ttl"),
        ({"ttl": math.inf}, "ttl"),
        ({"ttl": 0.05}, "margin"),
        ({"ttl": 1e12}, "ttl"),
        ({"ttl": 10, "renew_every": 10}, "renew_every"),
        ({"ttl": 10, "renew_every": 9.9}, "renew_every"),
        ({"ttl": 10, "renew_every": 0}, "renew_every"),
        ({"ttl": 10, "max_renew_failures": 0}, "max_renew_failures"),
        ({"ttl": 10, "max_hold": 1, "min_hold": 2}, "min_hold"),
        ({"ttl": 10, "renew": False, "beat_every": 1}, "renew=False"),
        ({"ttl": 10, "beat_every": -1}, "beat_every"),
    ],
)
def test_impossible_timing_is_refused(options: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_timing(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("ttl", [None, True, [1], b"1", 1j])
def test_ttl_of_a_wrong_type_is_refused(ttl: object) -> None:
    with pytest.raises(TypeError, match='ttl must be seconds, a timedelta or text such as "30s", not '):
        make_timing(ttl=ttl)  # type: ignore[arg-type]


class Fixed(random.Random):
    """Jitter of a fixed factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def uniform(self, a: float, b: float) -> float:
        assert (a, b) == (0.8, 1.2)
        return self.factor


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.2])
def test_adaptive_backoff_is_the_formula(factor: float) -> None:  # E3
    got = list(itertools.islice(pauses((0.01, 0.8), "adaptive", Fixed(factor)), 20))
    want = [min(0.8, max(0.01, 0.01 * 1.5**n * factor)) for n in range(20)]
    assert got[:10] == pytest.approx(want[:10])
    assert got[-1] == 0.8
    assert min(got) >= 0.01


def test_adaptive_backoff_stays_finite() -> None:
    sleeps = pauses((0.01, 0.8), "adaptive")
    assert all(0.01 <= next(sleeps) <= 0.8 for _ in range(5000))


def test_random_backoff_is_uniform_between_the_bounds() -> None:  # E3
    got = list(itertools.islice(pauses((0.1, 0.2), "random", random.Random(1)), 2000))
    assert 0.1 <= min(got) < 0.101
    assert 0.199 < max(got) <= 0.2


class Taken(NamedTuple):
    """The timing of a lease, as it shows: for how long it is asked for, trusted at first, and when it is renewed."""

    ttl: float
    margin: float
    renew_every: float


def timing(options: dict[str, Any], **of_lock: Any) -> Taken:
    """The timing that a lock gets which is made with these options by a Locks with those."""
    with Scripted(**options) as world:
        world.replies.append(Grant(7))
        task = world.start(world.locks.lock("x", **of_lock).acquire())
        lease = task.result()
        margin = lease.ttl - lease.remaining
        world.advance(lease.ttl)
        assert lease.valid
        ask = next(what for _, operation, what in world.asked if operation == "acquire")
        renewed = next(when for when, operation, _ in world.asked if operation == "renew")
        assert ask.ttl == lease.ttl * SECOND
        return Taken(lease.ttl, margin, renewed - T0)


def test_presets_of_kinds_have_the_documented_timing() -> None:  # D4
    for kind, ttl in (("workflow", 300), ("node", 120), ("resource", 30)):
        taken = timing({}, kind=kind)
        assert taken.ttl == ttl
        assert taken.renew_every == pytest.approx(0.6 * ttl)
    assert PRESETS["workflow"].failure == 90
    assert timing({}, kind="workflow", ttl=10).renew_every == pytest.approx(6)
    assert timing({}, kind="anything else").ttl == 30


def test_presets_can_be_redefined_and_are_checked() -> None:  # D4
    options: dict[str, Any] = {"ttl": 7, "kinds": {"node": {"ttl": 60, "heartbeat": 5}, "mine": Preset(9, 3, 1)}}
    with connect("memory://presets", **options) as locks, locks.lock("x", kind="node") as lease:
        assert lease.ttl == 60
    assert timing(options, kind="node") == pytest.approx((60, 0.65, 36))
    assert timing(options, kind="mine").renew_every == pytest.approx(3)
    assert timing(options).ttl == 7
    for wrong in (
        {"ttl": 10, "renew_every": 10},
        {"ttl": 10, "heartbeat": 8},
        {"renew_every": 1},
        {"ttl": 1, "x": 1},
        {"ttl": 10, "heartbeat": 1, "failure": 2},
        {"ttl": 10, "renew_every": 5, "failure": 15},
    ):
        with pytest.raises(ValueError, match=r"kinds\['mine'\]"):
            preset("mine", wrong)
    with pytest.raises(TypeError):
        preset("mine", 5)
    with pytest.raises(TypeError, match="failure"):
        preset("mine", {"ttl": 10, "failure": [9]})


def test_preset_may_say_when_a_member_has_failed() -> None:  # D4
    for heartbeat in (1, 0.1, 10 / 3, 1e-3):
        given = {"ttl": 60, "renew_every": 36, "heartbeat": heartbeat, "failure": 3 * heartbeat}
        assert preset("mine", given).failure == 3 * heartbeat
    assert preset("mine", {"ttl": 60, "failure": 9}) == Preset(60, 36, 3)
    with pytest.raises(ValueError, match=r"failure = 3·heartbeat = 30 s, got 40 s"):
        connect("memory://", kinds={"mine": {"ttl": 60, "renew_every": 36, "heartbeat": 10, "failure": 40}})


def test_connect_gives_defaults_that_a_lock_overrides() -> None:
    options = {"ttl": 12, "renew_every": 5, "timeout": 3}
    taken = timing(options)
    assert (taken.ttl, taken.renew_every) == (12, pytest.approx(5))
    assert timing(options, ttl=3).renew_every == pytest.approx(1)  # 5 was meant for the other ttl
    store = Intercepted("memory://defaults")
    with connect(store.url, **options) as other, store.connect(**options) as locks, other.lock("x") as lease:
        assert lease.ttl == 12
        with pytest.raises(AcquireTimeout):
            locks.lock("x", timeout=0).acquire()
        assert [ask.queue for ask in store.asks] == [False]
        with pytest.raises(AcquireTimeout):
            locks.lock("x").acquire()
        assert store.asks[1].queue
        assert store.limits["acquire"][1] == pytest.approx(3, abs=0.5)  # what was left of the timeout
    with pytest.raises(ValueError, match="renew_every"):
        connect("memory://", ttl=1, renew_every=2)
    with pytest.raises(TypeError, match="no option 'tll'"):
        connect("memory://", tll=1)


def test_locks_of_equal_timing_share_one_timing_object() -> None:
    """Ten thousand locks are to cost little: equal timings and pauses are one object."""
    assert make_timing(ttl=30) is make_timing(ttl=30.0)
    assert make_timing(ttl=30) is not make_timing(ttl=31)
    assert check_poll((0.01, 0.8), "adaptive") is check_poll([0.01, 0.8], "adaptive")
