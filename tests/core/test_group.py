"""To whom a key belongs: the same everywhere, evenly shared, and moved only by who comes or goes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold import connect
from leasehold.group import FAILED, JOINED, LEFT, Member, Roster, Watch
from leasehold.protocol import Holding

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = [f"key {number}" for number in range(3000)]


def roster(*owners: str) -> Roster:
    return Roster(Member(number, owner, None, NOW, NOW) for number, owner in enumerate(owners))


def owners(found: Roster, keys: list[str]) -> list[str]:
    members = [found.owner_of(key) for key in keys]
    return [member.owner for member in members if member is not None]


@given(st.sets(st.text(min_size=1, max_size=20), min_size=1, max_size=8), st.data())
def test_only_the_keys_of_who_goes_move(names: set[str], data: st.DataObject) -> None:
    everyone = sorted(names)
    gone = data.draw(st.sampled_from(everyone))
    keys = KEYS[:200]
    before = owners(roster(*everyone), keys)
    left = [each for each in everyone if each != gone]
    assert owners(roster(*reversed(everyone)), keys) == before, "the order of joining does not matter"
    if not left:
        assert owners(roster(), keys) == []
        return
    after = owners(roster(*left), keys)
    assert all(old in (new, gone) for old, new in zip(before, after, strict=True))


def test_shares_are_even_and_one_nth_moves() -> None:
    four, five = (roster(*(f"host{number}_{number * 77}_ab" for number in range(count))) for count in (4, 5))
    before, after = owners(four, KEYS), owners(five, KEYS)
    for count, found in ((4, before), (5, after)):
        shares = Counter(found)
        assert len(shares) == count
        assert all(abs(share - len(KEYS) / count) < 0.15 * len(KEYS) / count for share in shares.values()), shares
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    assert abs(moved - len(KEYS) / 5) < 0.15 * len(KEYS) / 5


def test_one_owner_may_join_twice() -> None:
    both = roster("a", "a", "b")
    found = Counter(member.id for key in KEYS if (member := both.owner_of(key)))
    assert set(found) == {0, 1, 2}
    assert both.owner_of(b"key 1") == both.owner_of("key 1")


@pytest.mark.parametrize("found", [roster("a", "b", "c"), roster()])
def test_keys_are_text_or_bytes(found: Roster) -> None:
    for key in ("k", "\ud800", "k\udfff"):
        data = key.encode(errors="surrogatepass")
        for same in (data, bytearray(data), memoryview(data)):
            assert found.owner_of(same) == found.owner_of(key)
    for wrong in (42, None, 1.5, ["k"], range(3)):
        with pytest.raises(TypeError, match=f"a key must be a str or bytes, not {type(wrong).__name__}"):
            found.owner_of(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("shared", [["w"] * 6, ["w", "w", "w", "x", "y", "z"]])
def test_members_that_share_an_owner_keep_their_keys(shared: list[str]) -> None:
    """When one of n goes, about 1/n of the keys move, and a sibling under the same owner does not swap its own."""
    before = roster(*shared)
    for gone in range(len(shared)):
        after = Roster(member for member in before if member.id != gone)
        moved = [key for key in KEYS if before.owner_of(key) != after.owner_of(key)]
        assert len(moved) < 1.7 * len(KEYS) / len(shared), f"{len(moved)} of {len(KEYS)} keys move when {gone} goes"
        if len(set(shared)) == 1:
            assert all(before.owner_of(key) == before[gone] for key in moved)
    shares = Counter(member.id for key in KEYS if (member := before.owner_of(key)))
    assert all(abs(share - len(KEYS) / 6) < 0.2 * len(KEYS) / 6 for share in shares.values()), shares


def test_who_has_gone_while_nobody_looked_is_told_as_failed(caplog: pytest.LogCaptureFixture) -> None:
    """It cannot be known; what a member that failed has left behind must not be overlooked."""
    with connect("memory://group-blind") as locks:
        watch = Watch(locks._core, "g", 1.0, {JOINED: [], LEFT: [], FAILED: []})
        there = [Holding("g", "", "m", "member", None, 1, 0.0, 3.0)]
        assert [what for what, _ in watch._compare(there, 10.0, 10.0)] == [JOINED]
        assert [what for what, _ in watch._compare([], 60.0, 60.0)] == [FAILED]
    assert "or left: nothing was seen for 50 s" in caplog.text


def test_it_is_the_same_in_every_process() -> None:
    """Python's own hash is another in each process."""
    code = (
        "from datetime import UTC, datetime\n"
        "from leasehold.group import Member, Roster\n"
        "now = datetime(2026, 1, 1, tzinfo=UTC)\n"
        "found = Roster(Member(n, o, None, now, now) for n, o in enumerate(['one', 'two', 'three']))\n"
        "print(*(found.owner_of(f'key {n}').owner for n in range(50)))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert answers == {" ".join(owners(roster("one", "two", "three"), KEYS[:50])) + "\n"}


class Model:
    """Members that beat, leave or fall silent, on a clock of the test's own; seen by a Watch every so often."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tokens = 0
        self.until: dict[int, float] = {}

    def holdings(self) -> list[Holding]:
        self.until = {token: until for token, until in self.until.items() if until > self.now}
        return [
            Holding("g", "", f"m{token}", "member", None, token, 0.0, until - self.now)
            for token, until in self.until.items()
        ]


@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "silent", "wait"]), st.integers(0, 9)), max_size=60))
def test_each_is_told_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    """Whoever is told as joined is told as left or as failed later, once, and as what it was."""
    ttl, look = 3.0, 1.0
    model, silent, told = Model(), set(), []
    left: set[int] = set()
    with connect("memory://group-model") as locks:
        watch = Watch(locks._core, "g", look, {JOINED: [], LEFT: [], FAILED: []})
        for what, choice in steps:
            beating = sorted(set(model.until) - silent)
            if what == "join":
                model.tokens += 1
                model.until[model.tokens] = model.now + ttl
            elif what == "leave" and beating:
                token = beating[choice % len(beating)]
                left.add(token)
                del model.until[token]
            elif what == "silent" and beating:
                silent.add(beating[choice % len(beating)])
            model.now += look if what == "wait" else 0.0
            for token in set(model.until) - silent:
                model.until[token] = model.now + ttl
            told += [(what, who.id) for what, who in watch._compare(model.holdings(), model.now, model.now)]
            assert [member.id for member in watch.roster or ()] == sorted(model.until)
    joined = [token for what, token in told if what == JOINED]
    ended = [token for what, token in told if what != JOINED]
    assert joined == sorted(set(joined))
    assert len(ended) == len(set(ended))
    for token in ended:
        assert told.index((JOINED, token)) < max(told.index(each) for each in told if each[1] == token)
    assert {token for what, token in told if what == LEFT} <= left
    assert {token for what, token in told if what == FAILED} <= silent
    assert set(ended) == set(joined) - set(model.until)
