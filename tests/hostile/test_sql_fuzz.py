"""SQL servers: whatever anybody writes into a row, its name alone suffers, and by nothing but a StoreError."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pymysql
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pymysql.constants import CLIENT

import leasehold
from leasehold.testing.handles import eventually

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]

NOW = time.time_ns() // 1000
HOUR = 3_600_000_000
FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))

NUMBERS = [0, -1, 1, 7, NOW, NOW + HOUR, 2**53, 2**53 + 1, 2**62, 2**63 - 2, 2**63 - 1, -(2**63)]
TEXTS = [
    "",
    "x",
    "a" * 32,
    "f" * 24,
    "y" * 64,
    "\x1b]0;owned\x07",
    "'; --",
    '"',
    "\\",
    "{NULL}",
    "%(name)s",
    "\u202e",
    "\n",
]
JSON = [
    None,
    "",
    "x",
    "{",
    "{}",
    "[]",
    "[[]]",
    "NaN",
    "1e999",
    "9" * 5000,
    "[" * 50_000,
    '"\\ud800"',
    '["lock",1,',
    '["lock",1,]]',
]
numbers, texts = st.sampled_from(NUMBERS), st.sampled_from(TEXTS)
odd = st.one_of(
    numbers,
    texts,
    st.none(),
    st.sampled_from([10**30, 0.5, True, [], [[]], {}, {"a": 1}, "\ud800"]),
)
PERMIT = ["a" * 32, "other", "lock", None, "f" * 24, 1, 30_000_000, 0, NOW + HOUR, 7, NOW, 2]
MORE = ["lock", 1, 7, 1, 30_000_000, 0, [], []]


@st.composite
def permits(draw: st.DrawFn) -> list[Any]:
    permit = list(PERMIT)
    for place in draw(st.sets(st.integers(0, len(permit) - 1), max_size=2)):
        permit[place] = draw(odd)
    return permit[: draw(st.sampled_from([12, 12, 12, 11, 0]))]


@st.composite
def mores(draw: st.DrawFn) -> str | None:
    """What ``more`` may have: nearly right, or not at all."""
    if draw(st.booleans()):
        return draw(st.sampled_from(JSON))
    more = list(MORE)
    more[6], more[7] = draw(st.lists(permits(), max_size=2)), draw(st.lists(permits(), max_size=2))
    for place in draw(st.sets(st.integers(0, len(more) - 1), max_size=2)):
        more[place] = draw(odd)
    return json.dumps(more[: draw(st.sampled_from([8, 8, 8, 7, 1]))], separators=(",", ":"))


ROWS = {
    "format": st.sampled_from([1, 1, 0, -1, 2, 32767]),
    "version": numbers,
    "token": numbers,
    "attempt": texts,
    "session": texts,
    "owner": texts,
    "kind": texts,
    "data": st.sampled_from(JSON),
    "state": st.sampled_from([-1, 0, 1, 2, 3, 4, 5, 32767]),
    "acquired": numbers,
    "expires": numbers,
    "expires_day": st.sampled_from([0, -1, 1, 2**31 - 1, -(2**31)]),
    "more": mores(),
    "note": st.sampled_from(JSON),
}
rows = st.sets(st.sampled_from(sorted(ROWS)), min_size=1, max_size=4).flatmap(
    lambda columns: st.fixed_dictionaries({column: ROWS[column] for column in sorted(columns)})
)


class Table:
    """The table as its administrator sees it."""

    def __init__(self, server: Any) -> None:
        self.space = os.urandom(6).hex()
        self.is_postgresql = server.kind == "postgresql"
        if self.is_postgresql:
            self._raw: Any = psycopg.connect(server.url, autocommit=True)
            return
        place = {"host": "127.0.0.1", "port": server.port, "user": "root", "database": "leasehold"}
        self._raw = pymysql.connect(**place, autocommit=True, client_flag=CLIENT.FOUND_ROWS)

    def write(self, name: str, row: dict[str, Any]) -> None:
        """Change these columns of the row."""
        assert self.sql(f"UPDATE leasehold SET {', '.join(f'{each} = %s' for each in row)}", *row.values(), name=name)

    def sql(self, sql: str, *values: Any, name: str | None = None) -> int:
        """Run it on the row of a name, or on all of the namespace. How many it touched."""
        where, which = "namespace = %s", [self._bytes(self.space)]
        if name is not None:
            where, which = f"{where} AND name = %s", [*which, self._bytes(name)]
        cursor = self._raw.cursor()
        cursor.execute(f"{sql} WHERE {where}", [*values, *which])
        return int(cursor.rowcount)

    def _bytes(self, text: str) -> Any:
        return text if self.is_postgresql else text.encode()

    def close(self) -> None:
        self.sql("DELETE FROM leasehold")
        self._raw.close()


@pytest.fixture(params=["postgresql", "mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
def scene(server: Any) -> Iterator[tuple[Table, leasehold.Locks]]:
    with leasehold.connect(server.url) as first:
        assert first.lock("first").acquire(timeout=30).release()  # the table is there
    table = Table(server)
    with leasehold.connect(server.url, namespace=table.space, ttl=60) as locks:
        yield table, locks
        table.sql("DELETE FROM leasehold")  # else closing retries what the bad ones refuse
    table.close()


def tried(operation: Any) -> None:
    """It may be refused, or find the name busy or lost; anything else is a fault."""
    try:
        operation()
    except (leasehold.StoreError, leasehold.AcquireTimeout, leasehold.LeaseLost):
        pass
    except ValueError as error:  # in use in another shape
        if "is in use as" not in str(error):
            raise


@FUZZ
@given(row=rows)
@example(row={"more": "{"})
@example(row={"version": 0})
@example(row={"version": 2**63 - 1})
@example(row={"state": 0, "more": None, "token": 2**63 - 1})
@example(row={"more": json.dumps([*MORE[:6], "ab", []])})
@example(row={"more": json.dumps([*MORE[:6], [], [[]]])})
@example(row={"acquired": -(2**63), "expires": 2**63 - 1})
def test_any_row_makes_nothing_but_a_store_error_about_its_name(
    scene: tuple[Table, leasehold.Locks], row: dict[str, Any]
) -> None:
    table, locks = scene
    table.sql("DELETE FROM leasehold", name="bad")
    with locks.lock("good").acquire(timeout=30) as good:
        lease = locks.lock("bad").acquire(timeout=30)
        for operation in (
            lambda: locks.lock("bad").try_acquire(),
            lambda: locks.lock("bad").acquire(timeout=0.02),
            lambda: locks.semaphore("bad", limit=3).try_acquire(),
            lambda: locks.all_of("another", "bad").try_acquire(),
            lambda: locks.inspect("bad"),
            lambda: locks.once("bad").outcome(),
            lambda: locks.break_lease("bad"),
            lease.renew,
            lease.release,
        ):
            table.write("bad", row)
            tried(operation)
        table.write("bad", row)
        assert "good" in [info.name for info in locks.leases()], "one bad record hides the others"
        good.renew()
        if row.get("format", 1) <= 1:
            locks.break_lease("bad", force=True)
            try:
                mended = locks.lock("bad").try_acquire()
            except ValueError as error:
                assert "is in use as" in str(error)  # noqa: PT017
            else:
                assert mended is None or mended.release()
        else:
            with pytest.raises(leasehold.StoreNotReady, match="upgrade"):
                locks.break_lease("bad", force=True)


BAD: dict[str, dict[str, Any]] = {
    "newer format": {"format": 2},
    "not JSON": {"more": "{"},
    "another list": {"more": "[1]"},
    "largest version": {"version": 2**63 - 1},
    "largest token": {"token": 2**63 - 1},
    "no permits": {"more": json.dumps([*MORE[:6], 1, 2])},
    "data is not JSON": {"data": "{", "more": json.dumps(MORE)},
}
NOT_RENEWED = ("newer format", "largest version", "largest token")


OUTCOME = ["done", "ann", 7, "2026-01-01T00:00:00+00:00", 1.5, None, 1, None]


@st.composite
def notes(draw: st.DrawFn) -> str:
    if draw(st.booleans()):
        return draw(st.sampled_from([each for each in JSON if each is not None]))
    outcome = list(OUTCOME)
    for place in draw(st.sets(st.integers(0, len(outcome) - 1), max_size=2)):
        outcome[place] = draw(odd)
    note = {"format": draw(st.sampled_from([1, 1, 1, 0, "1", None])), "outcomes": {"1": outcome, "2": draw(odd)}}
    for key in draw(st.sets(st.sampled_from(sorted(note)), max_size=1)):
        note[key] = draw(odd)
    return json.dumps(note)


@settings(FUZZ, max_examples=50)
@given(note=notes())
def test_foreign_note_is_a_store_error_and_can_be_forgotten(scene: tuple[Table, leasehold.Locks], note: str) -> None:
    table, locks = scene
    table.sql("DELETE FROM leasehold", name="noted")
    assert locks.lock("noted").acquire(timeout=30).release()
    once = locks.once("noted", version=1)
    table.write("noted", {"note": note})
    tried(once.outcome)
    tried(lambda: once.run(lambda: None))
    table.write("noted", {"note": note})
    tried(lambda: once.forget(every_version=True))
    tried(once.outcome)


def test_damaged_outcomes_are_forgotten_with_all_versions(scene: tuple[Table, leasehold.Locks]) -> None:
    table, locks = scene
    assert locks.lock("noted").acquire(timeout=30).release()
    table.write("noted", {"note": "{"})
    once = locks.once("noted", version=1)
    with pytest.raises(leasehold.StoreNotReady, match="'noted' are damaged"):
        once.run(lambda: None)
    assert once.forget(every_version=True)
    assert once.outcome() is None
    assert once.run(lambda: 7).result == 7


def test_damaged_rows_cost_no_other_lease(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    """All are renewed in one batch."""
    table = Table(server)
    with leasehold.connect(server.url, namespace=table.space, ttl=2) as locks:
        good = [locks.lock(f"good-{number}").acquire(timeout=30) for number in range(3)]
        bad = [locks.lock(what).acquire(timeout=30) for what in BAD]
        for what, row in BAD.items():
            table.write(what, row)
        eventually(lambda: not any(lease.valid for lease in bad if lease.name in NOT_RENEWED))
        renewals = locks.metrics().renewals
        eventually(lambda: locks.metrics().renewals >= renewals + len(good))
        assert [lease.lost_reason for lease in good] == [None] * 3, "SAFETY: a bad record of another name lost a lease"
        eventually(lambda: [info.name for info in locks.leases()] == ["good-0", "good-1", "good-2"])
        assert "is left out of the listing" in caplog.text
        for what in BAD:
            if what != "newer format":
                assert locks.break_lease(what, force=True)
                assert locks.lock(what).acquire(timeout=30).release()
        table.write("not JSON", {"more": "{"})
        began = time.monotonic()
    assert time.monotonic() - began < 15
    table.close()


def test_listener_survives_a_damaged_row_of_a_waiter(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    """When it is rung it looks at the rows of all names that are waited for."""
    table = Table(server)
    with (
        leasehold.connect(server.url, namespace=table.space, ttl=60) as locks,
        leasehold.connect(server.url, namespace=table.space) as others,
    ):
        held = [locks.lock(name).acquire(timeout=30) for name in ("bad", "good")]
        waiting = [
            threading.Thread(target=lambda name=name: tried(lambda: others.lock(name).acquire(timeout=8).release()))
            for name in ("bad", "good")
        ]
        for name, thread in zip(("bad", "good"), waiting, strict=True):
            thread.start()
            eventually(lambda name=name: (info := locks.inspect(name)) is not None and info.waiters == 1)
        table.write("bad", {"more": '[{"a":1}]'})
        assert held[1].release()
        waiting[1].join()
        errors = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
        assert not errors
        table.sql("DELETE FROM leasehold")
        waiting[0].join()
    table.close()


def test_listing_goes_past_names_that_are_no_text(server: Any) -> None:
    table = Table(server)
    with leasehold.connect(server.url, namespace=table.space, ttl=60) as locks:
        held = [locks.lock(name).acquire(timeout=30) for name in ("a", "z", "x")]
        assert table.sql("UPDATE leasehold SET name = %s", b"m\xff" if not table.is_postgresql else "m\x1b", name="x")
        assert [info.name for info in locks.leases()] == ["a", "z"]
        table.sql("DELETE FROM leasehold")
        del held
    table.close()


def test_lease_that_is_held_for_years_is_not_called_damaged(scene: tuple[Table, leasehold.Locks]) -> None:
    table, locks = scene
    lease = locks.lock("leader").acquire(timeout=30)
    table.write("leader", {"acquired": NOW - 3 * 365 * 24 * HOUR})
    tried(lambda: locks.lock("leader").acquire(timeout=0.3))  # who joins the queue has the whole row written down
    lease.renew()
    assert [info.name for info in locks.leases()] == ["leader"]
    assert lease.release()
