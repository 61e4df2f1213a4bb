"""A lease that a push brings: how long it can be trusted, and when it has to be asked for instead (S2)."""

import pytest

from leasehold import core, engine, policy
from leasehold.bells import ThreadBell
from leasehold.protocol import SECOND, Busy, Grant

T0, S0 = 100.0, 5_000 * SECOND


class FakeCore:
    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now


class FakeSpec:
    def __init__(self, **options: object) -> None:
        self.timing = policy.make_timing(**{"ttl": 30.0, **options})


class FakeAsk:
    name, attempt = "a", "0" * 32


def handed(granted_after: float, arrived_after: float, **options: object) -> engine.Taken | None:
    """Asked at T0, when the store's clock read S0; granted and told so many seconds later."""
    grant = Grant(7, at=S0 + int(granted_after * SECOND))
    busy = Busy(None, 0, 1.0, (), S0)
    return engine._handed(FakeCore(T0 + arrived_after), FakeSpec(**options), FakeAsk(), grant, busy, T0)


def test_its_deadline_counts_from_the_grant_by_the_stores_clock() -> None:
    taken = handed(2.0, 2.3)
    assert taken is not None
    assert taken.sent == pytest.approx(T0 + 2.0)
    assert taken.trusted == pytest.approx(policy.FIRST_TERM * 0.99 - 0.05)


def test_it_never_counts_from_later_than_its_arrival() -> None:
    """The store's clock is a little faster than ours."""
    taken = handed(2.02, 2.0)
    assert taken is not None
    assert taken.sent == pytest.approx(T0 + 2.0)


@pytest.mark.parametrize(
    ("granted", "arrived", "options"),
    [
        (2.0, 2.7, {}),  # too late: its first term is over
        (300.0, 2.0, {}),  # the store's clock was set forth meanwhile: it does not tell when
        (3.0, 2.0, {}),
        (3.0, 2.0, {"ttl": 300}),  # however much of its whole term is not trusted
        (-0.1, 0.1, {}),  # older than the answer that said Busy
        (0.0, 0.1, {}),
        (2.0, 2.1, {"renew": False}),  # nobody would extend it
        (2.0, 2.1, {"drift": 0.4}),  # the tolerance leaves nothing of a first term
    ],
)
def test_else_it_has_to_be_asked_for(granted: float, arrived: float, options: dict[str, object]) -> None:
    assert handed(granted, arrived, **options) is None


@pytest.mark.parametrize(("last", "had"), [(6, True), (7, False), (8, False)])
@pytest.mark.parametrize("granted", [0.0, 0.3])
def test_a_store_that_tells_its_last_token_need_not_tell_the_time_apart(last: int, had: bool, granted: float) -> None:
    """What is older than the answer that said Busy has no greater one; its clock may go by steps."""
    busy = Busy(None, 0, 1.0, (), S0, token=last)
    grant = Grant(7, at=S0 + int(granted * SECOND))
    taken = engine._handed(FakeCore(T0 + 0.4), FakeSpec(), FakeAsk(), grant, busy, T0)
    assert (taken is not None) == had
    assert taken is None or taken.sent == pytest.approx(T0 + granted)


def test_the_clock_was_set_back_since_the_answer() -> None:
    busy = Busy(None, 0, 1.0, (), S0, token=6)
    grant = Grant(7, at=S0 - 300 * SECOND)
    assert engine._handed(FakeCore(T0 + 0.1), FakeSpec(), FakeAsk(), grant, busy, T0) is None


def test_a_store_without_a_clock_is_asked() -> None:
    busy = Busy(None, 0, 1.0)
    assert engine._handed(FakeCore(T0), FakeSpec(), FakeAsk(), Grant(7), busy, T0) is None


# What is heard while one waits.

GRANT, NEXT = Grant(7, at=S0), Busy(None, 0, 0.7, now=S0)


@pytest.mark.parametrize(
    ("unread", "heard", "read"),
    [
        (None, GRANT, GRANT),
        (None, NEXT, NEXT),
        (NEXT, None, None),  # it is to ask
        (NEXT, GRANT, GRANT),
        (GRANT, None, GRANT),
        (GRANT, NEXT, GRANT),  # of the grant before that one, and late
        (GRANT, Grant(8, at=S0 + 1), Grant(8, at=S0 + 1)),
    ],
)
def test_a_grant_is_read_whatever_comes_after_it(
    unread: Grant | Busy | None, heard: Grant | Busy | None, read: Grant | Busy | None
) -> None:
    bell = ThreadBell()
    bell.news = unread
    core._ring(bell, heard)
    assert bell.rang()
    assert bell.news == read


@pytest.mark.parametrize(("told_at", "waits"), [(S0 - 1, 0.1), (S0, 0.7), (S0 + 1, 0.7), (None, 0.7)])
def test_news_that_are_older_than_the_answer_are_no_news(told_at: int | None, waits: float) -> None:
    """A call that came while the answer was on its way: whoever was granted it then has less left by now."""
    bell = ThreadBell()
    bell.news = Busy(None, 0, 0.7, now=told_at)
    waiting = engine._wait(FakeCore(T0), Busy(None, 0, 0.1, (), S0), T0 + 5, bell)  # type: ignore[arg-type]
    assert next(waiting).seconds == pytest.approx(0.1)
    assert waiting.send(True).seconds == pytest.approx(waits)


def test_old_news_put_nothing_off() -> None:
    """However many come: the look at the holder's expiry is due when it was."""
    bell, time = ThreadBell(), FakeCore(T0)
    waiting = engine._wait(time, Busy(None, 0, 1.0, (), S0), T0 + 5, bell)  # type: ignore[arg-type]
    assert next(waiting).seconds == pytest.approx(1.0)
    for passed in (0.4, 0.8):
        time._now = T0 + passed
        bell.news = Busy(None, 0, 1.0, now=S0 - 1)
        assert waiting.send(True).seconds == pytest.approx(1.0 - passed)
