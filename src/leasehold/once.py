"""Work that is done once: what ``once`` of threads and of tasks share.

The outcome of each version is in the *note* beside the lease's name, which the store writes only for whoever holds the
name at that moment. So what is recorded was recorded by the holder, whatever became of others who had begun it before.
The others queue for the name, and find the outcome when it is their turn.
"""

from __future__ import annotations

import time

from . import checks, policy
from .core import Core
from .effects import RETRY, Effects, Run, Wait
from .errors import LeaseholdError, ShuttingDown, StoreNotReady, StoreUnavailable
from .lease import BaseLease
from .log import ERROR, INFO, WARNING, log
from .stores import forms
from .typed import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime

DONE, FAILED, RUNNING = "done", "failed", "running"
FORMAT = 1
LONGEST_NOTE = 60_000
LONGEST_RESULT = 16_000
LONGEST_ERROR = 2_000
BARE_ROW = 16
"""What the note needs for an old outcome, beside its version, when it is short of room."""
ROOM = 3_000
"""What it must have left before another version is begun."""


class OnceFailed(LeaseholdError):
    """The work has failed for good. ``outcome`` says how."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"{outcome.name!r} version {outcome.version} has failed: {outcome.error}")
        self.outcome = outcome


class TooManyOutcomes(LeaseholdError):
    """So many versions of one name are recorded that there is no room for another. Nothing was run."""


class Damaged(StoreNotReady):
    """What is recorded is not what leasehold writes."""


class Outcome(NamedTuple):
    """What became of the work of one version. The same for everybody who asks, but for ``ran`` and ``result``."""

    name: str
    version: str
    status: str
    """``done``, ``failed``, or with ``wait=False`` ``running``: another is at it, and the rest is not known yet."""
    owner: str | None
    """Who has run it, or is at it."""
    token: int | None
    started: datetime | None
    finished: datetime | None
    duration: float | None
    error: str | None
    attempts: int
    """How often it has been tried, not counting those who died in the middle."""
    result: Any
    """What it returned. Whoever has run it (``ran``) has just that; the others what was recorded of it as JSON: tuples
    are lists, keys are text, and it is None if it is not JSON of up to 16 kB."""
    ran: bool
    """Whether this very call has run it to this end."""

    @property
    def ok(self) -> bool:
        return self.status == DONE

    def check(self) -> Outcome:
        """Raise OnceFailed if it has failed."""
        if self.status == FAILED:
            raise OnceFailed(self)
        return self

    def as_dict(self) -> dict[str, Any]:
        """The record with its times as ISO 8601 text: ready for JSON, if the result is."""
        moments = {"started": self.started, "finished": self.finished}
        return {**self._asdict(), **{key: moment and moment.isoformat() for key, moment in moments.items()}}


class Policy(NamedTuple):
    """What a caller wants to be done about work that is done, fails, or is under way."""

    version: str
    wait: bool
    retries: int
    retry_by: str
    ends: float | None = None
    """When it has waited long enough, on the local clock; None: however long it takes."""

    def is_final(self, outcome: Outcome | None) -> bool:
        return outcome is not None and (outcome.ok or outcome.attempts > self.retries)


def make_policy(core: Core, version: str | int, wait: bool, retries: int, retry_by: str) -> Policy:
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


class Call:
    """Measures a call of the function: ``with Call() as call: call.result = function()``. Notes an Exception."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: Exception | None = None

    def __enter__(self) -> Call:
        from datetime import UTC, datetime

        self._started, self._begun = datetime.now(UTC), time.monotonic()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.ran = Ran(self._started, time.monotonic() - self._begun, self.result, None)
        if not isinstance(error, Exception) or isinstance(error, ShuttingDown):
            return False  # nobody's failure: interrupted, cancelled, exiting, drained
        self.ran = self.ran._replace(error=error)
        return True


def ends_at(core: Core, timeout: float | None) -> float | None:
    patience = None if timeout is None else policy.patience(timeout)
    return None if patience is None else core.now() + patience


def outcomes(core: Core, name: str, limit: float = policy.CALL_LIMIT) -> Effects[dict[str, Outcome]]:
    """What is recorded, by version."""
    core.check_open()
    return load(name, (yield Run(core.store.read_note(name), limit)))


def known(core: Core, name: str, waits: bool, ends: float | None) -> Effects[dict[str, Outcome]]:
    """As ``outcomes``. For one who waits it is tried again, as long as an acquire would be, while the store is away."""
    bell, pause, limit = core.new_bell(), RETRY, policy.CALL_LIMIT
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
            out_of_time = now >= ends if ends is not None else now - failing_since >= policy.UNAVAILABLE_LIMIT
            if out_of_time or not waits or core.draining is not None:
                raise
        yield Wait(bell, pause if ends is None else min(pause, ends - now))
        pause = min(2 * pause, 2.0)
        if ends is not None:
            limit = min(policy.CALL_LIMIT, max(0.5, ends - core.now()))


def look(core: Core, name: str, wanted: Policy) -> Effects[Outcome | None]:
    """What is recorded of the version. Raises TooManyOutcomes when nothing is, and nothing could be."""
    recorded = yield from known(core, name, wanted.wait, wanted.ends)
    found = recorded.get(wanted.version)
    if found is None and sum(len(version) + BARE_ROW for version in recorded) > LONGEST_NOTE - ROOM:
        raise TooManyOutcomes(
            f"{name!r} has outcomes of {len(recorded)} versions, and no room for another: forget old ones, with "
            "once(name, version=…).forget()"
        )
    if wanted.is_final(found) and found is not None:
        log(
            INFO, "%r version %s is %s, by %s: skipped", name, found.version, found.status, found.owner, event="skipped"
        )
    return found


def record(core: Core, lease: BaseLease, wanted: Policy, ran: Ran) -> Effects[Outcome | None]:
    """Record what became of a call under the lease. None when the lease has ended before that."""
    from datetime import timedelta

    version, bell = wanted.version, core.new_bell()
    while True:
        try:
            recorded = yield from outcomes(core, lease.name)
            break
        except StoreUnavailable:  # the work is done: that must not be forgotten for one answer that got lost
            if not lease.valid:
                raise
            yield Wait(bell, min(RETRY, lease.remaining))
    attempts = recorded[version].attempts + 1 if version in recorded else 1
    error = None
    if ran.error is not None:
        error = f"{type(ran.error).__name__}: {ran.error}"[:LONGEST_ERROR].encode(errors="replace").decode()
        log(ERROR, "%r version %s has failed, attempt %d", lease.name, version, attempts, exc=ran.error, event="failed")
    finished = ran.started + timedelta(seconds=ran.duration)
    who = (lease.owner, lease.token, ran.started, finished, ran.duration)
    status = DONE if error is None else FAILED
    outcome = Outcome(lease.name, version, status, *who, error, attempts, ran.result, True)
    if ran.result is not None and _encoded(ran.result) is None:
        text = "the result of %r version %s is not recorded: it is not JSON, or longer than %d characters"
        log(WARNING, text, lease.name, version, LONGEST_RESULT, event="result_not_recorded")
    if (yield from write(core, lease, {**recorded, version: outcome})):
        return outcome
    text = "%r version %s: the lease was lost before the outcome was recorded; it is done again"
    log(WARNING, text, lease.name, version, event="not_recorded")
    return None


def forget(core: Core, lease: BaseLease, version: str | None) -> Effects[bool | None]:
    """Forget one version's outcome, or all: whether there was one. None when the lease has ended before that."""
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


def running(core: Core, name: str, wanted: Policy) -> Effects[Outcome]:
    """What is to be said when another was at it a moment ago: that it is, or what it has recorded since."""
    holdings = yield Run(core.store.inspect(name), policy.CALL_LIMIT)
    found = (yield from outcomes(core, name)).get(wanted.version)
    if wanted.is_final(found) and found is not None:
        return found
    holder = holdings[0] if holdings else None
    who = (holder and holder.owner, holder and holder.token)
    log(INFO, "%r version %s is being run by %s: skipped", name, wanted.version, who[0], event="skipped")
    return Outcome(name, wanted.version, RUNNING, *who, None, None, None, None, 0, None, False)


def write(core: Core, lease: BaseLease, recorded: dict[str, Outcome]) -> Effects[bool]:
    """Write the note, trying until the lease ends. False when it ended first."""
    claim, bell, text = lease._claim, core.new_bell(), dump(lease.name, recorded)
    while lease.valid:
        try:
            steps = core.store.write_note(claim.name, claim.attempt, claim.token, text)
            written: bool = yield Run(steps, max(0.05, min(policy.CALL_LIMIT, lease.remaining)))
            return written
        except StoreUnavailable:
            yield Wait(bell, min(RETRY, lease.remaining))
    return False


# The note.


def load(name: str, text: str | None) -> dict[str, Outcome]:
    """The outcomes in a note, by version. Raises StoreNotReady."""
    if text is None:
        return {}
    import json

    try:
        note = json.loads(text)
        if forms.number(note["format"], "format", 1, forms.MOST) > FORMAT:
            raise StoreNotReady(f"the outcomes of {name!r} were recorded by a newer leasehold: update this one")
        return {version: _outcome(name, version, *row) for version, row in note["outcomes"].items()}
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise Damaged(
            f"the outcomes of {name!r} are damaged ({type(error).__name__}): remove them with "
            f"once({name!r}).forget(every_version=True)"
        ) from error


def _outcome(name: str, version: str, status: str, *rest: Any) -> Outcome:
    """From a row of a note. Raises ValueError or TypeError where that is not one that ``dump`` has made."""
    from datetime import datetime, timedelta

    if status not in (DONE, FAILED):
        raise ValueError(status)
    if len(rest) == 1:  # an old one, shortened
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
    """The outcomes as a note; None when there are none.

    When they are too long, the oldest lose first their results and errors, then all but their status: that a version
    is done is never forgotten."""
    import json

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
        text = "%r has much recorded: results and errors of %d versions, the oldest, are dropped to make room"
        log(WARNING, text, name, len(shortened), event="shortened")
    return encode({"format": FORMAT, "outcomes": rows}) if rows else None


def _encoded(result: Any) -> Any:
    """The result if it can be recorded, else None."""
    import json

    try:
        text = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return result if len(text) <= LONGEST_RESULT else None
