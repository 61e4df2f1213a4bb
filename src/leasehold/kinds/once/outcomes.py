"""Work that is done once: the part that ``once`` of threads and of tasks share.

The outcomes of all versions are in the *note* beside the lease's name. The store writes a note only for the current
holder of the name, so an earlier holder that was overtaken cannot record an outcome. The other callers wait for the
name, and read the outcome when they acquire it.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ...core import checks, timing
from ...core.effects import RETRY, Effects, Run, Wait
from ...core.lease import BaseLease, state_of
from ...core.log import ERROR, INFO, WARNING, log
from ...core.registry import Registry
from ...errors import LeaseholdError, ShuttingDown, StoreNotReady, StoreUnavailable
from ...stores.common import forms

DONE, FAILED, RUNNING = "done", "failed", "running"
FORMAT = 1
LONGEST_NOTE = 60_000
LONGEST_RESULT = 16_000
LONGEST_ERROR = 2_000
BARE_ROW = 16
"""The size of a shortened outcome in the note, without its version."""
ROOM = 3_000
"""The free room that the note must have before another version is run."""


class OnceFailed(LeaseholdError):
    """The work of ``once`` failed, and no retries are left.

    Fields:
        outcome: the :class:`leasehold.Outcome`, with the recorded error.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"{outcome.name!r} version {outcome.version} failed: {outcome.error}")
        self.outcome = outcome


class TooManyOutcomes(LeaseholdError):
    """There is no room to record another version of this name, so the work was not run. Forget old versions first, with
    ``once(name, version=...).forget()``."""


class Damaged(StoreNotReady):
    """The note is not one that leasehold writes."""


class Outcome(NamedTuple):
    """The outcome of one version of the work. It is the same for every caller, except for ``ran`` and ``result``.

    Fields:
        name: the name of the work.
        version: the version, as text.
        status: "done" or "failed"; with ``wait=False`` also "running": another process runs the work, and the fields
            from ``started`` on are empty.
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
    result: Any
    ran: bool

    @property
    def ok(self) -> bool:
        """Whether the work is done."""
        return self.status == DONE

    def check(self) -> Outcome:
        """Raise OnceFailed if the work failed; otherwise return this outcome."""
        if self.status == FAILED:
            raise OnceFailed(self)
        return self

    def as_dict(self) -> dict[str, Any]:
        """The record as a dict, its times as ISO 8601 text: ready for JSON if the result is."""
        moments = {"started": self.started, "finished": self.finished}
        return {**self._asdict(), **{key: moment and moment.isoformat() for key, moment in moments.items()}}


class Policy(NamedTuple):
    """The options of a caller of ``once``."""

    version: str
    wait: bool
    retries: int
    retry_by: str
    ends: float | None = None
    """When the caller stops waiting, on the local clock; None: never."""

    def is_final(self, outcome: Outcome | None) -> bool:
        return outcome is not None and (outcome.ok or outcome.attempts > self.retries)


def make_policy(core: Registry, version: str | int, wait: bool, retries: int, retry_by: str) -> Policy:
    """Check the options of ``once``. Raises ValueError or TypeError."""
    if "note" in core.store.lacks:
        raise ValueError(f"once: {core.store.scheme} cannot record outcomes: {core.store.lacks['note']}")
    if isinstance(retries, bool) or not isinstance(retries, int):
        raise TypeError("retries must be an int")
    if retries < 0:
        raise ValueError(f"retries must be 0 or more, not {retries}")
    if retry_by not in ("any", "same"):
        raise ValueError(f'retry_by must be "any" or "same", not {retry_by!r}')
    checks.flag(wait, "wait")
    if isinstance(version, bool) or not isinstance(version, (str, int)):
        raise TypeError(f"version must be a str or an int, not {type(version).__name__}")
    return Policy(checks.text(str(version), "version", checks.MAX_LABEL), wait, retries, retry_by)


class Ran(NamedTuple):
    """One call of the function."""

    started: datetime
    duration: float
    result: Any
    error: Exception | None


class MeasuredCall:
    """Measures a call of the function: ``with MeasuredCall() as call: call.result = function()``. Keeps an Exception in
    ``ran.error``."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: Exception | None = None

    def __enter__(self) -> MeasuredCall:
        self._started, self._begun = datetime.now(UTC), time.monotonic()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.ran = Ran(self._started, time.monotonic() - self._begun, self.result, None)
        if not isinstance(error, Exception) or isinstance(error, ShuttingDown):
            return False  # interrupted, cancelled, exiting or drained: no failure of the work
        self.ran = self.ran._replace(error=error)
        return True


def ends_at(core: Registry, timeout: timing.Duration | None) -> float | None:
    patience = None if timeout is None else timing.patience(timeout)
    return None if patience is None else core.now() + patience


def outcomes(core: Registry, name: str, limit: float = timing.CALL_LIMIT) -> Effects[dict[str, Outcome]]:
    """The recorded outcomes, by version."""
    core.check_open()
    return load(name, (yield Run(core.store.read_note(name), limit)))


def known(core: Registry, name: str, waits: bool, ends: float | None) -> Effects[dict[str, Outcome]]:
    """As ``outcomes``. If the caller waits, a store that is unavailable is retried for as long as by an acquire."""
    bell, pause, limit = core.new_bell(), RETRY, timing.CALL_LIMIT
    failing_since: float | None = None
    while True:
        asked = core.now()
        try:
            return (yield from outcomes(core, name, limit))
        except StoreUnavailable as error:
            now = core.now()
            if failing_since is None:
                failing_since = asked
                core.tell("unavailable", name, None, str(error))
            out_of_time = now >= ends if ends is not None else now - failing_since >= timing.UNAVAILABLE_LIMIT
            if out_of_time or not waits or core.draining is not None:
                raise
        yield Wait(bell, pause if ends is None else min(pause, ends - now))
        pause = min(2 * pause, 2.0)
        if ends is not None:
            limit = min(timing.CALL_LIMIT, max(0.5, ends - core.now()))


def find_recorded(core: Registry, name: str, wanted: Policy) -> Effects[Outcome | None]:
    """The recorded outcome of the version, or None. Raises TooManyOutcomes if there is none and no room for one."""
    recorded = yield from known(core, name, wanted.wait, wanted.ends)
    found = recorded.get(wanted.version)
    if found is None and sum(len(version) + BARE_ROW for version in recorded) > LONGEST_NOTE - ROOM:
        raise TooManyOutcomes(
            f"no room to record another version of {name!r}: {len(recorded)} versions are recorded; forget old ones "
            "with once(name, version=…).forget()"
        )
    if wanted.is_final(found) and found is not None:
        log(
            INFO, "%r version %s is %s, by %s: skipped", name, found.version, found.status, found.owner, event="skipped"
        )
    return found


def record(core: Registry, lease: BaseLease, wanted: Policy, ran: Ran) -> Effects[Outcome | None]:
    """Record the outcome of a call under the lease. None if the lease was lost before that."""
    version, bell = wanted.version, core.new_bell()
    while True:
        try:
            recorded = yield from outcomes(core, lease.name)
            break
        except StoreUnavailable:  # the work is done: retry while the lease is held, so that its outcome is not lost
            if not lease.valid:
                raise
            yield Wait(bell, min(RETRY, lease.remaining))
    attempts = recorded[version].attempts + 1 if version in recorded else 1
    error = None
    if ran.error is not None:
        error = f"{type(ran.error).__name__}: {ran.error}"[:LONGEST_ERROR].encode(errors="replace").decode()
        log(ERROR, "%r version %s failed, attempt %d", lease.name, version, attempts, exc=ran.error, event="failed")
    finished = ran.started + timedelta(seconds=ran.duration)
    who = (lease.owner, lease.token, ran.started, finished, ran.duration)
    status = DONE if error is None else FAILED
    outcome = Outcome(lease.name, version, status, *who, error, attempts, ran.result, True)
    if ran.result is not None and _encoded(ran.result) is None:
        text = "the result of %r version %s is not recorded: it is not JSON, or longer than %d characters"
        log(WARNING, text, lease.name, version, LONGEST_RESULT, event="result_not_recorded")
    if (yield from write(core, lease, {**recorded, version: outcome})):
        return outcome
    text = "%r version %s: the lease was lost before the outcome was recorded; the work will run again"
    log(WARNING, text, lease.name, version, event="not_recorded")
    return None


def forget(core: Registry, lease: BaseLease, version: str | None) -> Effects[bool | None]:
    """Forget the outcome of one version, or (None) of all. Returns whether there was one; None if the lease was lost
    before that."""
    try:
        recorded = yield from known(core, lease.name, True, None)
    except Damaged:
        if version is not None:
            raise
        return True if (yield from write(core, lease, {})) else None
    left = {} if version is None else {key: value for key, value in recorded.items() if key != version}
    if len(left) == len(recorded):
        return False
    return True if (yield from write(core, lease, left)) else None


def running(core: Registry, name: str, wanted: Policy) -> Effects[Outcome]:
    """The outcome to return when another holder is running the work: ``running``, or the outcome if it is final now."""
    holdings = yield Run(core.store.inspect(name), timing.CALL_LIMIT)
    found = (yield from outcomes(core, name)).get(wanted.version)
    if wanted.is_final(found) and found is not None:
        return found
    holder = holdings[0] if holdings else None
    who = (holder and holder.owner, holder and holder.token)
    log(INFO, "%r version %s is being run by %s: skipped", name, wanted.version, who[0], event="skipped")
    return Outcome(name, wanted.version, RUNNING, *who, None, None, None, None, 0, None, False)


def write(core: Registry, lease: BaseLease, recorded: dict[str, Outcome]) -> Effects[bool]:
    """Write the note, with retries while the lease is valid. False if the lease was lost before that."""
    claim, bell, text = state_of(lease).claim, core.new_bell(), dump(lease.name, recorded)
    while lease.valid:
        try:
            steps = core.store.write_note(claim.name, claim.attempt, claim.token, text)
            written: bool = yield Run(steps, max(0.05, min(timing.CALL_LIMIT, lease.remaining)))
            return written
        except StoreUnavailable:
            yield Wait(bell, min(RETRY, lease.remaining))
    return False


# The note.


def load(name: str, text: str | None) -> dict[str, Outcome]:
    """The outcomes in a note, by version. Raises StoreNotReady if a newer leasehold wrote it, or it is damaged."""
    if text is None:
        return {}
    try:
        note = json.loads(text)
        if forms.number(note["format"], "format", 1, forms.MOST) > FORMAT:
            raise StoreNotReady(f"the outcomes of {name!r} were recorded by a newer leasehold: upgrade this one")
        return {version: _outcome(name, version, *row) for version, row in note["outcomes"].items()}
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise Damaged(
            f"the outcomes of {name!r} are damaged ({type(error).__name__}): remove them with "
            f"once({name!r}).forget(every_version=True)"
        ) from error


def _outcome(name: str, version: str, status: str, *rest: Any) -> Outcome:
    """The outcome in a row of a note. Raises ValueError or TypeError if ``dump`` cannot have made the row."""
    if status not in (DONE, FAILED):
        raise ValueError(status)
    if len(rest) == 1:  # an old outcome, shortened
        nothing = (None,) * 6
        return Outcome(name, version, status, *nothing, forms.number(rest[0], "attempts", 0, forms.MOST), None, False)
    owner, token, started, duration, error, attempts, result = rest
    forms.text(owner, "owner", checks.MAX_OWNER)
    forms.number(token, "token", 0, forms.MOST)
    forms.number(attempts, "attempts", 0, forms.MOST)
    if error is not None:
        forms.text(error, "error", LONGEST_ERROR, 0, printable=False)
    begun = datetime.fromisoformat(started)
    if begun.tzinfo is None:
        raise ValueError(started)
    times = (begun, begun + timedelta(seconds=duration), duration)
    return Outcome(name, version, status, owner, token, *times, error, attempts, result, False)


def dump(name: str, outcomes: dict[str, Outcome]) -> str | None:
    """The outcomes as a note; None if there are none.

    If they are too long, the oldest lose first their results and errors, then everything but status and attempts. A
    version is never dropped."""

    def encode(what: Any) -> str:
        return json.dumps(what, separators=(",", ":"))

    rows: dict[str, list[Any]] = {}
    for version, each in outcomes.items():
        rows[version] = [each.status, each.attempts]
        if each.started is not None:
            who = (each.status, each.owner, each.token, each.started.isoformat(), each.duration)
            rows[version] = [*who, each.error, each.attempts, _encoded(each.result)]
    oldest = sorted((version for version in rows if len(rows[version]) > 2), key=lambda version: rows[version][3])
    size, shortened = len(encode({"format": FORMAT, "outcomes": rows})), set()
    old, newest = oldest[:-1], oldest[-1:]
    for version, bare in [
        *((each, False) for each in old),
        *((each, True) for each in old),
        *((each, False) for each in newest),
    ]:
        row = rows[version]
        short = [row[0], row[6]] if bare else [*row[:5], None, row[6], None]
        if size > LONGEST_NOTE and short != row:
            size -= len(encode(row)) - len(encode(short))
            rows[version] = short
            shortened.add(version)
    if shortened:
        text = "the record of %r is full: the results and errors of the %d oldest versions are dropped"
        log(WARNING, text, name, len(shortened), event="shortened")
    return encode({"format": FORMAT, "outcomes": rows}) if rows else None


def _encoded(result: Any) -> Any:
    """The result if it is JSON and short enough to be recorded, else None."""
    try:
        text = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return result if len(text) <= LONGEST_RESULT else None
