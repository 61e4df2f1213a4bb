"""One who waits joins the queue of a lock in one statement, which others that are faster cannot make vain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy
from sql_servers import Database, ask, before, inside, is_join, is_swap, statements

import leasehold
from leasehold.core.entry import GRANTED, Entry
from leasehold.core.protocol import SECOND, Ask, Busy, Grant
from leasehold.stores.common.entries import Row
from leasehold.testing.handles import eventually

pytestmark = pytest.mark.server
TRIES = 10
"""More than enough."""
ODD = json.dumps({"it's": 'a "b" \\ %s %% \u00e9 \U0001f512 ]]]'})


@contextmanager
def opened(database: Database, namespace: str, through: str = "url") -> Iterator[Any]:
    if through == "url":
        with leasehold.connect(f"{database.url}?push=off", namespace=namespace, ttl=60) as locks:
            yield inside(locks)
        return
    driver = "postgresql+psycopg" if database.is_postgresql else "mysql+pymysql"
    engine = sqlalchemy.create_engine(f"{driver}://{database.url.partition('://')[2]}")
    with leasehold.connect(engine, namespace=namespace, ttl=60) as locks:
        yield inside(locks)
    engine.dispose()


def run(core: Any, steps: Any) -> Any:
    return core.driver.run(steps, 20.0)


def read(core: Any) -> Row:
    row: Row = run(core, core.store.table.read("name"))
    return row


def entry_of(row: Row) -> Entry:
    return Entry.load(row.name, row.token, row.state)


def take_or_join(core: Any, asked: Ask) -> Any:
    return run(core, core.store.table.take_or_join(asked, True))


def take_or_join_late(core: Any, asked: Ask) -> Any:
    """The same statement, on a server whose clock is past the time at which its caller gave up."""

    def steps() -> Any:
        joining, answer = core.store.table.take_or_join(asked, True), None
        while True:
            try:
                request = joining.send(answer)
            except StopIteration as end:
                return end.value
            if is_join(request):
                request = request._replace(values={**request.values, "until": 1})
            answer = yield request

    return run(core, steps())


class Busybody:
    """Takes and gives back the name, one statement each, whenever another is about to do something."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.rounds = 0
        self.take()

    def take(self) -> None:
        self._ask = ask("name")
        reply = run(self.core, self.core.store.acquire(self._ask))
        assert isinstance(reply, Grant)
        self._token = reply.token

    def __call__(self) -> None:
        self.rounds += 1
        assert self.rounds < TRIES, "it starves"
        assert run(self.core, self.core.store.release("name", self._ask.attempt, self._token, None))
        self.take()


@pytest.mark.parametrize("through", ["url", "engine"])
def test_who_is_to_join_does_not_starve_beside_one_who_is_faster(
    database: Database, namespace: str, through: str
) -> None:
    with opened(database, namespace) as theirs, opened(database, namespace, through) as ours:
        faster, asked = Busybody(theirs), ask("name", queue=True)
        reply = run(ours, before(is_swap, ours.store.acquire(asked), faster))
        assert isinstance(reply, Busy)
        assert reply.place == 0
        assert [waiter.attempt for waiter in entry_of(read(ours)).queue] == [asked.attempt]


def test_nor_when_it_came_to_one_that_has_expired(database: Database, namespace: str) -> None:
    """Then the row has to be read first; whoever loses a swap goes back to what cannot be lost."""
    with opened(database, namespace) as theirs, opened(database, namespace) as ours:
        assert isinstance(run(theirs, theirs.store.acquire(ask("name"))), Grant)
        database.sql("UPDATE leasehold SET expires = 1 WHERE namespace = %s", namespace)
        asked, faster = ask("name", queue=True), []

        def act() -> None:
            if faster:
                faster[0]()
            else:
                faster.append(Busybody(theirs))

        reply = run(ours, before(is_swap, ours.store.acquire(asked), act))
        assert isinstance(reply, Busy)
        assert reply.place == 0


@pytest.mark.parametrize("case", ["held", "contended", "min_hold", "granted", "interrupted"])
def test_what_the_statement_stores_is_what_the_rules_say(database: Database, namespace: str, case: str) -> None:
    """As if the row had been read, decided upon and swapped."""
    with opened(database, namespace) as core:
        first = ask("name", rest=30 * SECOND if case == "min_hold" else 0)
        grant = run(core, core.store.acquire(first))
        if case in ("contended", "granted"):
            for each in "bc":
                assert isinstance(run(core, core.store.acquire(ask("name", queue=True)._replace(owner=each))), Busy)
        if case == "granted":
            assert run(core, core.store.release("name", first.attempt, grant.token, None))
            assert entry_of(read(core)).holders[0].state == GRANTED
        if case == "interrupted":
            assert run(core, core.store.interrupt("name", False))
        seen = read(core)
        asked = ask("name", queue=True)._replace(data=ODD, owner="o'Neill \u00e9 \\ \"", kind="%s")
        joined = take_or_join(core, asked)
        row, expected = read(core), entry_of(seen)
        reply = expected.acquire(asked, core.driver.session.address, row.now, row.now)
        assert isinstance(reply, Busy)
        expires = entry_of(row).queue[-1].expires
        assert row.now - SECOND < expires - 15 * SECOND <= row.now
        expected.queue[-1].expires = expires
        assert row.state == expected.state()
        assert (row.token, row.version) == (seen.token, seen.version + 1)
        if database.is_postgresql:
            assert joined._replace(now=0, wall=0) == row._replace(now=0, wall=0)
        else:
            assert joined == 0


@pytest.mark.parametrize(
    "case", ["expired", "holds it", "waits", "nobody holds it", "semaphore", "several", "newer", "late", "damaged"]
)
def test_what_the_statement_leaves_as_it_is(database: Database, namespace: str, case: str) -> None:
    """All of that is for the rules to decide."""
    with opened(database, namespace) as core:
        shape = {"semaphore": {"shape": "semaphore"}, "several": {"limit": 11}}.get(case, {})
        first, asked = ask("name", **shape), ask("name", queue=True)
        run(core, core.store.acquire(first))
        if case == "holds it":
            asked = first._replace(queue=True)
        elif case in ("waits", "nobody holds it"):
            assert isinstance(run(core, core.store.acquire(asked)), Busy)
        changes = {"expired": "expires = 1", "nobody holds it": "state = 0", "newer": "format = 2"}
        if change := {**changes, "damaged": """more = '["lock",1,'"""}.get(case):
            database.sql(f"UPDATE leasehold SET {change} WHERE namespace = %s", namespace)
        if case == "nobody holds it":
            asked = ask("name", queue=True)
        found = database.sql("SELECT * FROM leasehold WHERE namespace = %s", namespace)
        joined = take_or_join_late(core, asked) if case == "late" else take_or_join(core, asked)
        assert joined == 0
        assert database.sql("SELECT * FROM leasehold WHERE namespace = %s", namespace) == found
        database.sql("DELETE FROM leasehold WHERE namespace = %s", namespace)


def test_it_takes_what_is_free(database: Database, namespace: str) -> None:
    with opened(database, namespace) as core:
        for _ in range(2):  # a name that was never used, and one that was
            asked = ask("name", queue=True)
            token = take_or_join(core, asked)
            holder = entry_of(read(core)).holders[0]
            assert (holder.attempt, holder.token, holder.ttl) == (asked.attempt, token, asked.ttl)
            ((more, note),) = database.sql("SELECT more, note FROM leasehold WHERE namespace = %s", namespace)
            assert (more, note) == (None, None)
            assert run(core, core.store.release("name", asked.attempt, token, None))


def test_a_hand_off_in_a_crowd_takes_few_statements(
    database: Database, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tries in vain what is for names that nobody waits for."""
    with opened(database, namespace) as core:
        dialect = core.driver.session.dialect
        asks = [ask("name", queue=True) for _ in range(4)]
        grant = run(core, core.store.acquire(asks[0]))
        for each in asks[1:3]:
            assert isinstance(run(core, core.store.acquire(each)), Busy)
        assert run(core, core.store.release("name", asks[0].attempt, grant.token, grant.hint))
        eventually(lambda: core.soonest == float("inf"))
        sent = statements(monkeypatch)
        grant = run(core, core.store.acquire(asks[1]))
        assert sent == [dialect.ACCEPT]
        assert grant.hint
        assert isinstance(run(core, core.store.acquire(asks[3])), Busy)
        assert sent[1:] == [dialect.TAKE_OR_JOIN] + ([] if database.is_postgresql else [dialect.READ])
        sent.clear()
        assert run(core, core.store.release("name", asks[1].attempt, grant.token, grant.hint))
        assert sent[0] == dialect.READ
        assert len(sent) == 2
        grant = run(core, core.store.acquire(asks[2]))
        assert grant.hint
        assert run(core, core.store.release("name", asks[2].attempt, grant.token, grant.hint))
        grant = run(core, core.store.acquire(asks[3]))
        assert not grant.hint  # nobody is left
        sent.clear()
        assert run(core, core.store.release("name", asks[3].attempt, grant.token, grant.hint))
        assert sent == [dialect.FREE]


def test_what_is_joined_is_written_as_earlier_versions_do(database: Database, namespace: str) -> None:
    """They read it, and processes of both may use one table."""
    with opened(database, namespace) as core:
        grant = run(core, core.store.acquire(ask("name")))
        first, second = ask("name", queue=True), ask("name", queue=True)
        take_or_join(core, first)
        take_or_join(core, second)
        [(more,)] = database.sql("SELECT more FROM leasehold WHERE namespace = %s", namespace)
        expires = [waiter.expires for waiter in entry_of(read(core)).queue]
        session = read(core).session
        waiters = [
            [each.attempt, each.owner, each.kind, None, session, 1, each.ttl, 0, at, 0, 0, 0]
            for each, at in zip((first, second), expires, strict=True)
        ]
        assert json.loads(more) == ["lock", 1, grant.token, 1, first.ttl, 0, [], waiters]
        database.sql("DELETE FROM leasehold WHERE namespace = %s", namespace)


@pytest.mark.parametrize("own_of_all", ["mariadb", "mysql"], indirect=True)
def test_who_does_not_fit_into_a_queue_leaves_it_as_it_is(own_of_all: Database, namespace: str) -> None:
    """Whoever releases the name has to send all of it. (Without strict mode, a text that is too long is nothing.)"""
    own_of_all.sql("SET GLOBAL max_allowed_packet = 65536")
    own_of_all.sql("SET GLOBAL sql_mode = ''")
    with opened(own_of_all, namespace) as core:
        run(core, core.store.acquire(ask("name")))
        large, waiting = json.dumps("x" * 6000), 0
        for _ in range(20):
            take_or_join(core, ask("name", queue=True)._replace(data=large))
            now = len(entry_of(read(core)).queue)
            assert now >= waiting
            waiting = now
        assert 5 < waiting < 15, "it is never too long: a bad test"
