"""Durations: seconds, a timedelta or text, in every option and argument that is one, for threads and asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import leasehold
from leasehold import aio

WORLDS = [leasehold, aio]
OF_A_TERM = ("ttl", "renew_every", "drift")
OF_LOCK = (*OF_A_TERM, "timeout", "max_hold", "min_hold", "beat_every")
YEAR = "must be at most 31622400 s"


async def done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def sides(locks: Any) -> dict[str, Callable[..., object]]:
    """Every call that makes something of options, by name, and the options that are durations."""
    return {
        "lock": lambda **options: locks.lock("x", **options),
        "semaphore": lambda **options: locks.semaphore("x", limit=2, **options),
        "rlock": lambda **options: locks.rlock("x", **options),
        "rwlock": lambda **options: locks.rwlock("x", **options),
        "read": lambda **options: locks.rwlock("x").read(**options),
        "write": lambda **options: locks.rwlock("x").write(**options),
        "all_of": lambda **options: locks.all_of("x", "y", **options),
        "once": lambda **options: locks.once("x", **options),
        "election": lambda **options: locks.election("x", **options),
        "group": lambda **options: locks.group("x", **options),
    }


OPTIONS = {
    **dict.fromkeys(("lock", "semaphore", "rlock", "rwlock", "read", "write", "all_of"), OF_LOCK),
    "once": OF_A_TERM,
    "election": (*OF_A_TERM, "stop_before"),
    "group": ("heartbeat", "look"),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("call", OPTIONS)
async def test_every_option_that_is_a_duration_takes_each_form(world: Any, call: str) -> None:
    """Seen by the error of a duration that is too long: it says how long it was taken to be."""
    locks = world.connect("memory://durations")
    make = sides(locks)[call]
    for option in OPTIONS[call]:
        for given in ("400d", timedelta(days=400), 34_560_000):
            with pytest.raises(ValueError, match=rf"{option} {YEAR}.* not 34560000"):
                make(**{option: given})
        with pytest.raises(ValueError, match=rf"^{option}: invalid duration '5 s': use seconds, or a number with ms,"):
            make(**{option: "5 s"})
        with pytest.raises(TypeError, match=f'{option} must be seconds, a timedelta or text such as "30s", not list'):
            make(**{option: [5]})
    await done(locks.close())


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("given", ["400d", timedelta(days=400)])
async def test_every_argument_that_is_a_duration_takes_each_form(world: Any, given: Any) -> None:
    locks = world.connect("memory://durations")
    lease = await done(locks.lock("x").acquire())
    calls: list[tuple[str, Callable[[], object]]] = [
        ("timeout", lambda: locks.lock("y").acquire(given)),
        ("timeout", lambda: locks.lock("y").try_acquire(given)),
        ("timeout", lambda: locks.all_of("y", "z").acquire(timeout=given)),
        ("timeout", lambda: locks.rlock("y").try_acquire(timeout=given)),
        ("timeout", lambda: locks.once("y").run(lambda: 1, timeout=given)),
        ("ttl", lambda: lease.renew(given)),
        ("grace", lambda: locks.drain(given)),
        ("grace", lambda: locks.drain_on_signals(given)),
        ("ttl", lambda: world.connect("memory://", ttl=given)),
        ("poll's max", lambda: world.connect("memory://", poll=("10ms", given))),
        ("poll's min", lambda: locks.lock("y", poll=(given, given))),
        ("ttl", lambda: world.connect("memory://", kinds={"job": {"ttl": given}})),
        ("heartbeat", lambda: world.connect("memory://", kinds={"job": {"ttl": 60, "heartbeat": given}})),
    ]
    for name, call in calls:
        with pytest.raises(ValueError, match=rf"{name} {YEAR}"):
            await done(call())
    await done(lease.release())
    await done(locks.close())


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        *(
            (30, 30),
            (0.25, 0.25),
            ("30", 30),
            ("30s", 30),
            ("250ms", 0.25),
            ("1.5m", 90),
            ("1h", 3600),
            ("2d", 172_800),
        ),
        *((timedelta(minutes=2), 120), (timedelta(milliseconds=250), 0.25), ("2d", 172_800), (".5s", 0.5)),
    ],
)
async def test_duration_is_what_it_says(world: Any, given: Any, seconds: float) -> None:
    locks = world.connect("memory://durations", ttl="5s")
    lease = await done(locks.lock("x", ttl=given).acquire())
    assert lease.ttl == pytest.approx(seconds)
    await done(lease.renew("1m"))
    assert lease.ttl == 60
    await done(lease.renew(given))
    text = await done(lease.transfer())
    heir = await done(locks.accept(text, ttl=given))
    assert heir.ttl == pytest.approx(seconds)
    assert (await done(locks.lock("y").acquire())).ttl == 5
    await done(locks.close())


@pytest.mark.parametrize(
    "text",
    [*("", " ", "s", ".", "-1", "-1s", "+5s", "1e3", "1 s", " 1s", "nan", "inf", "1_0"), *("٣s", "1h30m", "30S", "1w")],
)
def test_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        leasehold.connect("memory://", ttl=text)
    says = f"ttl: invalid duration {text!r}: use seconds, or a number with ms, s, m, h or d, such as 30s"
    assert str(caught.value) == says


@pytest.mark.parametrize("wrong", [0, "0s", timedelta(0), timedelta(seconds=-1), float("nan"), float("inf")])
def test_duration_out_of_range_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="ttl must be above 0 and finite"):
        leasehold.connect("memory://", ttl=wrong)


def test_durations_of_several_forms_are_compared() -> None:
    with pytest.raises(ValueError, match=r"min_hold of 60 s is longer than max_hold of 30 s"):
        leasehold.connect("memory://", min_hold="1m", max_hold=30)
    with pytest.raises(ValueError, match=r"renew_every of 20 s must be below"):
        leasehold.connect("memory://", ttl="10s", renew_every=timedelta(seconds=20))
    with pytest.raises(ValueError, match=r"poll's min of 1 s is above its max of 0\.5 s"):
        leasehold.connect("memory://", poll=("1s", 0.5))


@pytest.mark.parametrize("poll", ["30", "5s", "10ms,1s"])
def test_poll_that_is_one_text_is_refused(poll: Any) -> None:
    with pytest.raises(ValueError, match=rf"poll must be a pair \(min, max\) of durations, not '{poll}'"):
        leasehold.connect("memory://", poll=poll)


def test_fields_of_a_preset_are_durations_and_read_as_seconds() -> None:
    preset = leasehold.Preset("2m", timedelta(minutes=1), 20)
    assert preset == leasehold.Preset(ttl=120, renew_every=60, heartbeat=20) == (120, 60, 20)
    assert preset.failure == 60
    with leasehold.connect("memory://", kinds={"job": preset, "task": {"ttl": "1m", "failure": "9s"}}) as locks:
        assert locks.lock("x", kind="job").acquire().ttl == 120
        assert locks.lock("y", kind="task").acquire().ttl == 60
    with pytest.raises(ValueError, match="heartbeat: invalid duration 'soon'"):
        leasehold.Preset(120, 60, "soon")
