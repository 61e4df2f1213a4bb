"""Groups: to whom a key belongs, which is the same everywhere and evenly shared, and who is told of each member."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import Scripted

from leasehold.core.protocol import Holding
from leasehold.kinds.group.membership import FAILED, JOINED, LEFT, Member, Roster

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = [f"key {number}" for number in range(3000)]


def roster(*owners: str) -> Roster:
    return Roster(Member(number, owner, None, NOW, NOW) for number, owner in enumerate(owners))


def owners(found: Roster, keys: list[str]) -> list[str]:
    members = [found.owner_of(key) for key in keys]
    return [member.owner for member in members if member is not None]


@given(st.sets(st.text(min_size=1, max_size=20), min_size=1, max_size=8), st.data())
def test_member_that_goes_moves_no_keys_but_its_own(names: set[str], data: st.DataObject) -> None:
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


def test_members_share_keys_evenly_and_a_new_one_moves_its_share() -> None:
    four, five = (roster(*(f"host{number}_{number * 77}_ab" for number in range(count))) for count in (4, 5))
    before, after = owners(four, KEYS), owners(five, KEYS)
    for count, found in ((4, before), (5, after)):
        shares = Counter(found)
        assert len(shares) == count
        assert all(abs(share - len(KEYS) / count) < 0.15 * len(KEYS) / count for share in shares.values()), shares
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    assert abs(moved - len(KEYS) / 5) < 0.15 * len(KEYS) / 5


def test_owner_that_joins_twice_gets_two_shares_of_keys() -> None:
    both = roster("a", "a", "b")
    found = Counter(member.id for key in KEYS if (member := both.owner_of(key)))
    assert set(found) == {0, 1, 2}
    assert both.owner_of(b"key 1") == both.owner_of("key 1")


@pytest.mark.parametrize("found", [roster("a", "b", "c"), roster()])
def test_owner_of_takes_text_and_bytes_alone(found: Roster) -> None:
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


def test_owner_of_a_key_is_the_same_in_every_process() -> None:
    """Python's own hash is another in each process."""
    code = (
        "from datetime import UTC, datetime\n"
        "from leasehold.kinds.group.membership import Member, Roster\n"
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


class Watched:
    """A group that is looked at every second, and what its callbacks were told."""

    def __init__(self, world: Scripted, look: float = 1.0) -> None:
        self.world = world
        self.told: list[tuple[str, int]] = []
        world.start(self.listen(look))

    async def listen(self, look: float) -> None:
        group = self.world.locks.group("g", heartbeat=1.0, misses=3, look=look)
        group.on_joined(lambda who: self.told.append((JOINED, who.id)))
        group.on_left(lambda who: self.told.append((LEFT, who.id)))
        group.on_failed(lambda who: self.told.append((FAILED, who.id)))


def test_member_that_goes_while_nobody_looks_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    """It may have left. That cannot be known, and what a failed member has left behind must not be overlooked."""
    with Scripted() as world:
        world.holdings = lambda: [Holding("g", "", "m", "member", None, 1, 0.0, 3.0)]
        watched = Watched(world)
        assert watched.told == [(JOINED, 1)]
        world.holdings = list
        world.stall(50.0)
        assert watched.told == [(JOINED, 1), (FAILED, 1)]
    assert "(or left: the last read was 50 s ago)" in caplog.text


class Members:
    """Members that beat, leave or fall silent. As long as they beat, they have three more seconds."""

    TTL = 3.0

    def __init__(self, world: Scripted) -> None:
        self.world = world
        self.tokens = 0
        self.until: dict[int, float] = {}
        self.silent: set[int] = set()
        world.holdings = self.holdings

    def beating(self) -> list[int]:
        return sorted(set(self.until) - self.silent)

    def join(self) -> None:
        self.tokens += 1
        self.until[self.tokens] = self.world.now + self.TTL

    def beat(self) -> None:
        now = self.world.now
        self.until.update(dict.fromkeys(self.beating(), now + self.TTL))
        self.until = {token: until for token, until in self.until.items() if until > now}

    def holdings(self) -> list[Holding]:
        self.beat()
        return [
            Holding("g", f"{token:024x}", f"m{token}", "member", None, token, 0.0, until - self.world.now)
            for token, until in self.until.items()
        ]


@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "silent", "wait"]), st.integers(0, 9)), max_size=60))
def test_each_member_is_told_once_as_joined_and_once_as_gone(steps: list[tuple[str, int]]) -> None:
    """A member that was told as joined is told as left or as failed later, as what it was."""
    look = 0.125
    left: set[int] = set()
    with Scripted() as world:
        members = Members(world)
        watched = Watched(world, look)
        for what, choice in steps:
            beating = members.beating()
            if what == "join":
                members.join()
            elif what == "leave" and beating:
                token = beating[choice % len(beating)]
                left.add(token)
                del members.until[token]
            elif what == "silent" and beating:
                members.silent.add(beating[choice % len(beating)])
            world.advance(1.0 if what == "wait" else look)
            gone = {token for happened, token in watched.told if happened != JOINED}
            assert {token for _, token in watched.told} - gone == set(members.until)
        silent, there, told = members.silent, set(members.until), list(watched.told)
    joined = [token for what, token in told if what == JOINED]
    ended = [token for what, token in told if what != JOINED]
    assert joined == sorted(set(joined))
    assert len(ended) == len(set(ended))
    for token in ended:
        assert told.index((JOINED, token)) < max(told.index(each) for each in told if each[1] == token)
    assert {token for what, token in told if what == LEFT} <= left
    assert {token for what, token in told if what == FAILED} <= silent
    assert set(ended) == set(joined) - there
