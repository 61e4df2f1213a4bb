"""How what is held is renewed, and moved to another session where its term asks for that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kazoo.exceptions import BadVersionError, NoNodeError

from ...core import clock
from ...core.protocol import GONE, RENEWED, SECOND, Renewal, Steps
from ...errors import StoreError, StoreNotReady, StoreUnavailable
from .requests import LARGEST, Call, Calls, Each, Multi
from .session import Session
from .several import Several
from .stake import Place, Stake


class Asked(NamedTuple):
    """One of a batch."""

    number: int
    renewal: Renewal
    stake: Stake


class Renewing(Several):
    """All that ``renew`` does."""

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreUnavailable]]:
        started = clock.now()
        outcomes: dict[int, str | StoreUnavailable] = {}
        sessions: dict[Session, list[Asked]] = {}
        parts: list[list[Asked]] = []
        works: list[Steps[None]] = []
        for number, each in enumerate(batch):
            stake = self.link.find(each.attempt)
            if stake is None or not stake.held or (stake.name, stake.token) != (each.name, each.token):
                continue
            if stake.until <= started:
                continue
            stake.offered = stake.offered or each.offered
            asked = Asked(number, each, stake)
            if stake.session.lasts(each.ttl / SECOND):
                sessions.setdefault(stake.session, []).append(asked)
            else:
                parts.append([asked])
                works.append(self._renew_one(asked, started, outcomes))
        for session, many in sessions.items():
            for part in _in_parts(many):
                parts.append(part)
                works.append(self._renew(session, part, started, outcomes))
        errors = yield from side_by_side(works, self.link.patience())
        for part, error in zip(parts, errors, strict=True):
            if error is not None and len(batch) == 1:
                raise error
            if error is not None:  # of one session, or of one lease: not to fail the others
                told = StoreUnavailable(str(error))
                told.__cause__ = error
                outcomes = {**{asked.number: told for asked in part}, **outcomes}
        return [outcomes.get(number, GONE) for number in range(len(batch))]

    def _renew_one(self, asked: Asked, started: float, outcomes: dict[int, str | StoreUnavailable]) -> Steps[None]:
        """One that has to be moved, or has been."""
        outcome = yield from self._move(asked.stake, asked.renewal.ttl)
        if outcome is None:
            yield from self._renew(asked.stake.session, [asked], started, outcomes)
        else:
            outcomes[asked.number] = outcome

    def _renew(
        self, session: Session, part: Sequence[Asked], started: float, outcomes: dict[int, str | StoreUnavailable]
    ) -> Steps[None]:
        """One transaction that checks every node: a write, so that it is the leader who says so.

        Sent in the session that they live by, so that it is a sign of life, too."""
        left = list(part)
        while left:
            places = [asked.stake.place() for asked in left]
            elsewhere = [asked for asked, place in zip(left, places, strict=True) if place.session is not session]
            if elsewhere:  # moved meanwhile, by another renewal
                left = [asked for asked in left if asked not in elsewhere]
                for asked in elsewhere:
                    yield from self._renew_one(asked, started, outcomes)
                continue
            proofs = [self._proof(*each, started) for each in zip(left, places, strict=True)]
            [answers] = yield Calls(session, (Multi(proofs),))
            failed = [n for n, answer in enumerate(answers) if isinstance(answer, (NoNodeError, BadVersionError))]
            if failed:
                number, _, stake = left[failed[0]]
                outcome: str | StoreUnavailable | None = None
                try:
                    outcome = None if stake.ended else (yield from self._explain(stake))
                except StoreNotReady as error:  # what its node carries is not ours: about this one alone
                    outcome = StoreUnavailable(str(error))
                if outcome is not None:
                    outcomes[number] = outcome
                    del left[failed[0]]
                left = [asked for asked in left if not asked.stake.ended]  # what was given back meanwhile is gone
                continue
            for (number, each, stake), place, answer in zip(left, places, answers, strict=True):
                if isinstance(answer, Exception):
                    raise StoreUnavailable(f"{self.link.where}: a renewal failed: {type(answer).__name__}")
                if hasattr(answer, "version"):
                    stake.placed(place._replace(version=answer.version))
                    stake.ttl = each.ttl
                    self.link.saw(answer.mtime)
                if self.link.hold(stake, started, each.ttl):
                    outcomes[number] = RENEWED
            return

    def _proof(self, asked: Asked, place: Place, started: float) -> Call:
        """That the node is there as we left it; and if its term changes, what it is now, for listings.

        One of several holders writes each time: nobody watches its node, and by its mtime others see when it ends. So
        does one that may yet be moved: what comes later than this write comes too late."""
        _, each, stake = asked
        same = started + each.ttl / SECOND <= stake.until or (each.ttl == stake.ttl and stake.limit == 1)
        if same and not stake.may_move:
            return Call("check", (place.path, place.version))
        stake.record = stake.record._replace(ttl=each.ttl, since=stake.since, token=stake.token)
        return Call("set_data", (place.path, stake.record.encode(), place.version))

    def _move(self, stake: Stake, ttl: int) -> Steps[str | None]:
        """Put the node into a longer session, at its place in line. None when it is in one, else why it can't be."""
        session = yield from self._session(ttl / SECOND)
        while True:
            here = stake.place()
            if here.session.lasts(ttl / SECOND):
                return None
            there = stake.next_place(here, session)
            record = stake.record._replace(since=stake.since, token=stake.token)
            parts = (
                Call("delete", (here.path, here.version)),
                Call("create", (there.path, record.encode()), {"ephemeral": True}),
            )
            [answers] = yield Calls(session, (Multi(parts),))
            if not any(isinstance(answer, Exception) for answer in answers):
                if stake.placed(there, record):
                    self.link.moved(stake)
                return None
            outcome = yield from self._explain(stake)
            if outcome is not None:
                return outcome


def side_by_side(works: Sequence[Steps[None]], within: float) -> Steps[list[StoreError | None]]:
    """Go on with all of them at once. Of each what it ended with, if that was an error: one that hangs, or fails, is
    not to cost the others their answers."""
    errors: list[StoreError | None] = [None] * len(works)
    if len(works) == 1 and within == float("inf"):
        try:
            yield from works[0]
        except StoreError as error:
            errors[0] = error
        return errors
    asking: dict[int, Any] = {}

    def go_on(number: int, answer: Any) -> None:
        """To its next request, or to its end."""
        asking.pop(number, None)
        try:
            is_error = isinstance(answer, StoreError)
            asking[number] = works[number].throw(answer) if is_error else works[number].send(answer)
        except StopIteration:
            pass
        except StoreError as error:
            errors[number] = error

    try:
        for number in range(len(works)):
            go_on(number, None)
        while asking:
            numbers = tuple(asking)
            answers = yield Each(tuple(asking.values()), within)
            for number, answer in zip(numbers, answers, strict=True):
                go_on(number, answer)
    finally:
        for work in works:
            work.close()
    return errors


def _in_parts(asked: list[Asked]) -> Iterator[list[Asked]]:
    """Those of one session in as many transactions as it takes."""
    part: list[Asked] = []
    size = 0
    for each in asked:
        stake = each.stake
        bytes_of_it = 200 + len(stake.path or "") + len(stake.record.encode())
        if part and size + bytes_of_it > LARGEST:
            yield part
            part, size = [], 0
        part.append(each)
        size += bytes_of_it
    if part:
        yield part
