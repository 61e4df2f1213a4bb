"""How what is held is renewed, and moved to another session where its term asks for that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kazoo.exceptions import BadVersionError, NoNodeError

from ...core import clock
from ...core.protocol import GONE, RENEWED, SECOND, Renewal, Steps
from ...errors import StoreError, StoreUnavailable
from .placing import Placement
from .requests import LARGEST, Apart, Part, multi
from .sessions import ZooKeeperSession
from .stakes import Stake, StakePlace


class Due(NamedTuple):
    """One of a batch."""

    number: int
    renewal: Renewal
    stake: Stake


Outcomes = dict[int, str | StoreError]


class Renewals:
    """All that ``renew`` does.

    One transaction for each session checks every node: a write, so that it is the leader who says so; sent in the
    session that they live by, so that it is a sign of life, too."""

    def __init__(self, placement: Placement) -> None:
        self.placement, self.stakes = placement, placement.stakes

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreError]]:
        started = clock.now()
        outcomes: Outcomes = {}
        left = []
        for number, each in enumerate(batch):
            stake = self.stakes.find(each.attempt)
            if stake is None or not stake.held or (stake.name, stake.token) != (each.name, each.token):
                continue
            if stake.until > started:
                stake.offered = stake.offered or each.offered
                left.append(Due(number, each, stake))
        moving = [due for due in left if not due.stake.session.lasts(due.renewal.ttl / SECOND)]
        left = [due for due in left if due not in moving]
        while left:
            left = yield from self._prove(left, started, outcomes)
        patience = float("inf") if len(batch) == 1 else self.stakes.patience()
        for due in moving:  # last, so that a session that is ill costs the others nothing
            steps = self.placement.move(due.stake, due.renewal.ttl, patience)
            left = [] if (yield from self._alone(steps, due, outcomes)) else [due]
            while left:
                left = yield from self._prove(left, started, outcomes)
        if len(batch) == 1 and isinstance(error := outcomes.get(0), StoreError):
            raise error
        return [_about(outcomes.get(number, GONE)) for number in range(len(batch))]

    def _alone(self, steps: Steps[str | None], due: Due, outcomes: Outcomes) -> Steps[bool]:
        """What one lease needs by itself. True when that has brought its outcome; an error is about it alone."""
        try:
            outcome: str | StoreError | None = yield from steps
        except StoreError as error:
            outcome = error
        if outcome is not None:
            outcomes[due.number] = outcome
        return outcome is not None

    def _prove(self, left: list[Due], started: float, outcomes: Outcomes) -> Steps[list[Due]]:
        """One round for all. Those that are to be asked for again: one of their transaction was not as it was left."""
        parts = list(self._by_session(left))
        calls = [(session, multi([self._proof(*each, started) for each in part])) for session, part in parts]
        answered = yield Apart(calls, self.stakes.patience())
        again: list[Due] = []
        for (_, part), answers in zip(parts, answered, strict=True):
            if isinstance(answers, StoreError):
                outcomes |= {due.number: answers for due, _ in part}
                continue
            failed = [n for n, answer in enumerate(answers) if isinstance(answer, (NoNodeError, BadVersionError))]
            if failed:
                due = part.pop(failed[0])[0]
                steps = self.placement.explain(due.stake)
                if not due.stake.ended and not (yield from self._alone(steps, due, outcomes)):
                    again.append(due)
                again += [each for each, _ in part if not each.stake.ended]  # what was given back meanwhile is gone
                continue
            for (due, place), answer in zip(part, answers, strict=True):
                self._renewed(due, place, answer, started, outcomes)
        return again

    def _by_session(self, left: list[Due]) -> Iterator[tuple[ZooKeeperSession, list[tuple[Due, StakePlace]]]]:
        """In as many transactions as it takes."""
        sessions: dict[ZooKeeperSession, list[tuple[Due, StakePlace]]] = {}
        for due in left:
            place = self.stakes.place(due.stake)
            sessions.setdefault(place.session, []).append((due, place))
        for session, many in sessions.items():
            part: list[tuple[Due, StakePlace]] = []
            size = 0
            for due, place in many:
                bytes_of_it = 200 + len(place.path) + len(due.stake.record.encode())
                if part and size + bytes_of_it > LARGEST:
                    yield session, part
                    part, size = [], 0
                part.append((due, place))
                size += bytes_of_it
            yield session, part

    def _proof(self, due: Due, place: StakePlace, started: float) -> Part:
        """That the node is there as we left it; and if its term changes, what it is now, for listings.

        One of several holders writes each time: nobody watches its node, and by its mtime others see when it ends. So
        does one that may yet be moved: what comes later than this write comes too late."""
        _, each, stake = due
        same = started + each.ttl / SECOND <= stake.until or (each.ttl == stake.ttl and stake.limit == 1)
        if same and not stake.may_move:
            return Part("check", (place.path, place.version))
        stake.record = stake.record._replace(ttl=each.ttl, since=stake.since, token=stake.token)
        return Part("set_data", (place.path, stake.record.encode(), place.version))

    def _renewed(self, due: Due, place: StakePlace, answer: Any, started: float, outcomes: Outcomes) -> None:
        number, each, stake = due
        if isinstance(answer, Exception):
            outcomes[number] = StoreUnavailable(f"a renewal failed: {type(answer).__name__}")
            return
        if hasattr(answer, "version"):
            self.stakes.placed(stake, place._replace(version=answer.version))
            stake.ttl = each.ttl
            self.stakes.saw(answer.mtime)
        if self.stakes.hold(stake, started, each.ttl):
            outcomes[number] = RENEWED


def _about(outcome: str | StoreError) -> str | StoreError:
    """What the store refuses one lease is no reason to give up the others."""
    if isinstance(outcome, (str, StoreUnavailable)):
        return outcome
    told = StoreUnavailable(str(outcome))
    told.__cause__ = outcome
    return told
