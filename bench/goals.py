"""What we mean to reach, per store: a ratio to a peer of the same run, or a figure. What was not measured is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from .figures import Row, number

PAIR, APAIR = "acquire + release, threads, p50", "acquire + release, asyncio, p50"
ONE_CORE = ", on one core"
HANDOFF = "hand-off between two processes, p50"
MESSAGES = "bare messages"
EIGHT = "8 processes, one name"


def away(rtt: float) -> str:
    """Said at the end of a line's name, of a run with so many seconds for a round trip to the server."""
    return f", {rtt * 1e3:g} ms away"


Judged: TypeAlias = tuple[str, str, bool | None]
ROUNDS = 3
"""What was seen in fewer is no proof."""


class Goal(NamedTuple):
    """``whose`` figure in the line ``row`` is to be at most ``bound``, times that ``of`` a peer if one is named."""

    row: str
    bound: float
    of: str = ""
    whose: str = "leasehold"
    at_least: bool = False

    def words(self, unit: str = "") -> str:
        who = "" if self.whose == "leasehold" else f" ({self.whose})"
        bound = f"{'at least' if self.at_least else 'at most'} {number(self.bound)}"
        return f"{self.row}{who}: {bound} × {self.of}" if self.of else f"{self.row}{who}: {bound} {unit}".strip()

    def judge(self, rows: Sequence[Row]) -> Judged:
        """The goal in words, what was seen, and whether that meets it; None when nothing tells."""
        row = next((row for row in rows if row.what == self.row), None)
        seen = row and row.values.get(self.whose)
        if row is None or seen is None:
            return self.words(), "not measured", None
        if self.of:
            other = row.values.get(self.of)
            if not other:
                return self.words(), "not measured", None
            seen /= other
        text = f"{seen:.2f} ×" if self.of else f"{number(seen)} {row.unit}".strip()
        if row.rounds and len(row.rounds[self.whose]) < ROUNDS:
            return self.words(row.unit), f"{text}, in {len(row.rounds[self.whose])} rounds", None
        return self.words(row.unit), text, seen >= self.bound if self.at_least else seen <= self.bound


HOLDING = (
    Goal("waiting 30 s: share of a core", 1.0),
    Goal("10,000 held (ttl 30 s): share of a core", 15.0),
    Goal("10,000 held: resident memory per lease", 2.0),
    Goal("10,000 held for 60 s: lost", 0.0),
    Goal("share of a core per lease, 10,000 held to 1,000", 1.25),
)
NAMES = Goal("acquire + release among 100,000 live names, to that among 1", 1.25)
FEWER_NAMES = Goal("acquire + release among 10,000 live names, to that among 1", 1.25)
CROWD = Goal("1,000 tasks, 100 names: least share of a task, to the mean", 0.5, at_least=True)
SOME_FLAT = "messages per hand-off, 1 to 200 in the queue: largest to smallest"
FLAT = Goal("messages per hand-off, 1 to 1,000 in the queue: largest to smallest", 1.25)
ONE_IDLE, IDLE = "1 waiter of one process: messages a second", "10 waiters of one process: messages a second"
FAIR = Goal(f"{EIGHT}: Jain's fairness index", 0.98, at_least=True)
TAKEOVER = Goal("takeover after kill −9 (ttl 3 s), maximum of 5", 3250.0)
EMBEDDED = (*HOLDING, NAMES, CROWD, FAIR)
SERVER = (*EMBEDDED, FLAT)
CONSENSUS = (*HOLDING, FEWER_NAMES, CROWD, FAIR, Goal(SOME_FLAT, 1.25), FLAT)
REDIS, DEAD = "redis-py", "100,000 dead rows"
UNFAIR = (REDIS, "pottery", "sherlock", "tooz")


def at_a_distance(bare: str, handoff: int) -> tuple[Goal, ...]:
    """As many round trips as the bare calls, one to take and one to give back: one more would make it half as long
    again. And no more than ``handoff`` of them to hand a name on, where the bare messages have one."""
    pairs = [Goal(PAIR + away(rtt), 1.25, bare) for rtt in (0.001, 0.01)]
    return *pairs, Goal(HANDOFF + away(0.01), 1.25 * handoff, MESSAGES)


SQL = (
    Goal(PAIR, 1.25, "bare SQL"),
    Goal(APAIR, 1.25, "bare SQL"),
    Goal(PAIR, 1.25, "leasehold", DEAD),
    Goal(APAIR, 1.25, "leasehold", DEAD),
    Goal(ONE_IDLE, 0.3),
    Goal(IDLE, 3.0),
    TAKEOVER,
    *SERVER,
)
SET = (Goal(PAIR, 1.5, "bare commands"), Goal(APAIR, 1.5, "bare commands"), Goal(HANDOFF, 5.0))


OF = {
    "sqlite": (
        Goal(PAIR, 1.0, "filelock"),
        Goal(APAIR, 1.0, "filelock"),
        Goal(HANDOFF, 5.0),
        Goal("`leasehold run NAME -- true`, times that", 5.0),
        Goal("`import`, over that", 40.0),
        *EMBEDDED,
    ),
    "redis": (
        *(
            goal._replace(row=goal.row + where)
            for where in ("", ONE_CORE)
            for goal in (
                Goal(PAIR, 0.8, REDIS),
                Goal(PAIR, 1.2, "bare scripts"),
                Goal(PAIR, 1.0, REDIS, "leasehold, your client"),
                Goal(APAIR, 0.85, REDIS),
            )
        ),
        Goal(HANDOFF, 1.0, "python-redis-lock"),
        Goal(f"{EIGHT}: leases a second", 2.0, "python-redis-lock", at_least=True),
        *(Goal(f"{EIGHT}: leases a second", 1.0, unfair, at_least=True) for unfair in UNFAIR),
        Goal("1,000 tasks, 100 names: leases a second", 1.0, REDIS, at_least=True),
        Goal(ONE_IDLE, 0.2),
        Goal(IDLE, 2.0),
        Goal(SOME_FLAT, 1.2 / 0.8),  # none is more than 20 % from the middle
        TAKEOVER,
        *at_a_distance("bare scripts", 2),
        Goal(PAIR + away(0.01), 1.25, MESSAGES),
        *SERVER,
    ),
    "redlock": (
        *(
            Goal(row, 1.5, "leasehold", whose)
            for row in (PAIR, APAIR)
            for whose in ("one of five dead", "one of five hangs")
        ),
        Goal(PAIR + away(0.01), 1.25 * 3 / 2, MESSAGES),  # three round trips, for two
    ),
    "mongodb": (*SET, Goal(ONE_IDLE, 0.3), Goal(IDLE, 0.3), *at_a_distance("bare commands", 2), *SERVER),
    "mongodb_one": SET,
    "mongodb_set": SET,
    "postgresql": (*SQL, Goal(HANDOFF, 3.0), *at_a_distance("bare SQL", 4)),
    "mariadb": (*SQL, Goal(HANDOFF, 10.0), *at_a_distance("bare SQL", 7)),
    "mysql": (*SQL, Goal(HANDOFF, 10.0), *at_a_distance("bare SQL", 7)),
    "etcd": (Goal(PAIR, 0.6, "etcd3gw"), Goal(HANDOFF, 5.0), *at_a_distance("bare transactions", 3), *CONSENSUS),
    "zookeeper": (Goal(PAIR, 1.0, "kazoo"), Goal(HANDOFF, 5.0), *at_a_distance("bare calls", 2), *CONSENSUS),
}


def judged(store: str, rows: Sequence[Row]) -> list[Judged]:
    return [goal.judge(rows) for goal in OF.get(store, ())]
