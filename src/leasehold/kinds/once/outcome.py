"""What became of one version of the work, as callers see it, and the errors about it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from ...errors import LeaseholdError

T = TypeVar("T")

DONE, FAILED, RUNNING, REFUSED = "done", "failed", "running", "refused"


class Outcome(NamedTuple, Generic[T]):
    """The outcome of one version of the work. It is the same for every caller, except for ``ran`` and ``result``.

    Fields:
        name: the name of the work.
        version: the version, as text; with ``per``, the start of the slot in UTC, as "2026-11-19T22:00:00Z".
        status: "done" or "failed". Also "running": with ``wait=False``, another process runs the work. Also "refused":
            with ``per``, on a store without a clock, the slot is too far ahead. The fields from ``started`` on are
            empty then.
        owner: the owner that ran the work, or is running it.
        token: the fencing token under which it ran.
        started: when it started, an aware datetime in UTC.
        finished: when it finished, an aware datetime in UTC.
        duration: how long it ran, in seconds.
        error: type and message of its exception; None if it is done.
        attempts: how often the work was tried, not counting processes that died in the middle.
        result: what the function returned. The caller that ran it gets that object, the others what was recorded as
            JSON: tuples are lists, keys are text; None if it is not JSON of at most 16 kB.
        ran: whether this very call ran the work.

    Of old versions, beyond the last ``keep``, only name, version, status and attempts are recorded.
    """

    name: str
    version: str
    status: str
    owner: str | None
    token: int | None
    started: datetime | None
    finished: datetime | None
    duration: float | None
    error: str | None
    attempts: int
    result: T
    ran: bool

    @property
    def ok(self) -> bool:
        """Whether the work is done."""
        return self.status == DONE

    def check(self) -> Outcome[T]:
        """Raise OnceFailed if the work failed; otherwise return this outcome."""
        if self.status == FAILED:
            raise OnceFailed(self)
        return self

    def as_dict(self) -> dict[str, Any]:
        """The record as a dict, its times as ISO 8601 text: ready for JSON if the result is."""
        moments = {"started": self.started, "finished": self.finished}
        return {**self._asdict(), **{key: moment and moment.isoformat() for key, moment in moments.items()}}


class OnceFailed(LeaseholdError):
    """The work of ``once`` failed where another process ran it, and no retries are left.

    Fields:
        outcome: the :class:`leasehold.Outcome`, with the recorded error.
    """

    def __init__(self, outcome: Outcome[Any]) -> None:
        why = "its error is no longer recorded" if outcome.error is None else outcome.error
        super().__init__(f"{outcome.name!r} version {outcome.version} failed: {why}")
        self.outcome = outcome


class TooManyOutcomes(LeaseholdError):
    """There is no room to record another version of this name, so the work was not run. Forget old versions first, with
    ``once(name).forget(version)``."""


def bare(name: str, version: str, status: str, attempts: int) -> Outcome[Any]:
    """An outcome without details."""
    return Outcome(name, version, status, None, None, None, None, None, None, attempts, None, False)


def result_of(outcome: Outcome[T], error: BaseException | None, check: bool) -> Outcome[T]:
    """What ``run`` returns or, with ``check``, raises: ``error``, the work's own, if this call ran it last."""
    if outcome.status == FAILED and check:
        if outcome.ran and error is not None:
            try:
                raise error
            finally:
                del error  # it refers to this frame
        raise OnceFailed(outcome)
    return outcome
