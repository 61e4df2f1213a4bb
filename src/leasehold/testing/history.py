"""The history of leases under test, and its judge. Simulation, chaos and users' own tests share it.

Each process under test adds a :class:`Record` for every step, on one clock (CLOCK_MONOTONIC is the same for all
processes of a machine). The resource that they write to keeps a log of its own. :func:`check` compares the two and
returns what must not have happened. It does not depend on leasehold: it can judge a history of any lock.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Holding = tuple[int, str]
"""Token and owner."""
NEVER = float("inf")
LATE = 0.05
"""How long after its deadline a holder may be notified of a loss, in seconds."""


class Record(NamedTuple):
    """One step of a process, between ``invoked`` and ``returned``."""

    op: str
    """The operation. Its ``outcome`` is one of those named here:

    - ``acquire``: granted; or busy, unknown or cancelled (then ``ask`` must hold nothing ``limit`` seconds later);
    - ``check``: valid or invalid, as the lease reported; ``stored`` is the token that the store had at that time;
    - ``renew``: renewed, refused or unknown;
    - ``release``: released, refused or unknown (with a ``limit``, ``ask`` must hold nothing that many seconds later);
    - ``write``: accepted, refused or unknown, by the resource of that name; ``begin``: a write is about to start;
    - ``lost``: the holder was notified of the loss at ``returned``; ``invoked`` is when the lease was lost;
    - ``seen``: a probe of the store found that ``ask`` holds the name;
    - ``queued``: ``ask``, first made at ``invoked``, had its place in the queue, or the lease, at ``returned``. Only
      for waiters that do not overtake;
    - ``over``: the process that made ``ask`` has died or given up: ``ask`` must hold nothing ``limit`` seconds later;
    - ``broken``: an operator broke this holding, which the store would have kept for ``limit`` more seconds: it must
      not be renewed. ``by force``: it ended at once, before its holder was notified; otherwise ``told``;
    - ``gone``: a process was notified that this holding has ended: a member has left or failed;
    - ``done``: work that is done once was done under this holding, with that ``outcome``;
    - ``took``: a name that was free at ``invoked`` was acquired at ``returned``; at most ``limit`` seconds are allowed;
    - ``left``: something was left over at the end: ``outcome`` says what;
    - ``fault``: a fault was injected; not judged.
    """
    name: str
    owner: str = ""
    token: int = 0
    invoked: float = 0.0
    returned: float = 0.0
    outcome: str = ""
    ask: str = ""
    limit: float | None = None
    stored: int | None = None
    weight: int = 1
    """For a grant: its share of the name's ``limit``. A writer takes all of it."""


OUTCOMES = {
    "acquire": {"granted", "busy", "unknown", "cancelled"},
    "check": {"valid", "invalid"},
    "renew": {"renewed", "refused", "unknown"},
    "release": {"released", "refused", "unknown"},
    "write": {"accepted", "refused", "unknown"},
    "broken": {"by force", "told"},
}
OPS = {*OUTCOMES, "begin", "lost", "seen", "queued", "over", "gone", "done", "took", "left", "fault"}


class Violation(NamedTuple):
    """A broken rule: its name, the lease's name, and what happened."""

    rule: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.name!r}: {self.text}"


class Resource(NamedTuple):
    """The final state of a fenced counter: its value, and each accepted write in order, as (token, owner)."""

    value: int
    log: Sequence[tuple[int, str]]


class History:
    """Collects records, from any thread. With ``path`` it also appends each record to that file, as a line of JSON."""

    def __init__(self, path: str | Path | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.records: list[Record] = []
        self.now = now
        self._mutex = threading.Lock()
        self._file = open(path, "a", buffering=1) if path is not None else None  # noqa: SIM115

    def add(self, op: str, name: str, **fields: Any) -> Record:
        """Add a :class:`Record` of ``op`` on ``name``. Default for ``returned``: now; for ``invoked``: ``returned``."""
        fields.setdefault("returned", self.now())
        fields.setdefault("invoked", fields["returned"])
        record = Record(op, name, **fields)
        with self._mutex:
            self.records.append(record)
            if self._file is not None:
                self._file.write(json.dumps(record) + "\n")
        return record

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self.records))

    def __len__(self) -> int:
        return len(self.records)


def load(paths: Iterable[str | Path]) -> list[Record]:
    """The records of several files, in order of time. A line that a kill cut off is ignored."""
    lines = [line for path in paths for line in Path(path).read_text().splitlines(keepends=True)]
    records = [Record(*json.loads(line)) for line in lines if line.endswith("\n")]
    return sorted(records, key=lambda record: record.returned)


def check(
    history: Iterable[Record],
    resources: Mapping[str, Resource] | None = None,
    *,
    exclusive: bool = True,
    careful: bool = False,
    in_turn: bool = False,
    limit: int | Mapping[str, int] = 1,
    late: float = LATE,
) -> list[Violation]:
    """Return the broken rules; an empty list if there are none.

    Args:
        history: the records, in any order.
        resources: the final state of each resource, by name. Default: none.
        exclusive: False: do not judge exclusion, for a store that lost what it had acknowledged. Default: True.
        careful: judge that no holder writes after it was notified of the loss. Default: False.
        in_turn: judge that no waiter was overtaken in the queue. A waiter that was paused for longer than its place
            lasts may be overtaken. Default: False.
        limit: how many may hold a name at once, or a mapping of that by name. Default: 1.
        late: how long after its deadline a holder may be notified of a loss, in seconds. Default: 0.05.

    Raises:
        ValueError: a record has an unknown operation or outcome.

    Example::

        from leasehold.testing.history import History, check

        history = History()
        history.add("acquire", "x", owner="a", token=1, outcome="granted")
        assert check(history) == []
    """
    names: dict[str, list[Record]] = defaultdict(list)
    for record in history:
        _refuse_nonsense(record)
        names[record.name].append(record)
    found: list[Violation] = []
    for name in {*names, *(resources or {})}:
        records = sorted(names[name], key=lambda record: record.returned)
        judge = _Judge(name, records, found)
        most = limit if isinstance(limit, int) else limit.get(name, 1)
        judge.tokens()
        judge.ended()
        if exclusive:
            judge.exclusion(most)
            judge.departures()
            judge.breaks()
        if in_turn:
            judge.turns()
        if most == 1:
            judge.theft()
        judge.losses(late)
        if careful:
            judge.late_writes()
        judge.maybes()
        judge.ends()
        judge.done()
        if resources and name in resources:
            judge.resource(resources[name])
    return found


def assert_clean(history: Iterable[Record], resources: Mapping[str, Resource] | None = None, **options: Any) -> None:
    """Raise AssertionError if :func:`check` finds a broken rule. ``history`` and ``resources`` are as there,
    ``options`` the other options of :func:`check`."""
    found = check(history, resources, **options)
    assert not found, "\n".join(map(str, found))


def _refuse_nonsense(record: Record) -> None:
    if record.op not in OPS:
        raise ValueError(f"a history has no op {record.op!r}: {', '.join(sorted(OPS))}")
    if (record.op, record.outcome) == ("acquire", "granted") and record.token <= 0:
        raise ValueError(f"{record.owner} was granted {record.name!r} without a token")
    known = OUTCOMES.get(record.op)
    if known is not None and record.outcome.partition(":")[0] not in known:
        raise ValueError(f"{record.op} has no outcome {record.outcome!r}: {', '.join(sorted(known))}")


class _Judge:
    """The records of one name against each rule."""

    def __init__(self, name: str, records: list[Record], found: list[Violation]) -> None:
        self.name = name
        self.records = records
        self.grants = [each for each in self.of("acquire") if each.outcome == "granted"]
        self.found = found
        self.forced = {each.token: each.returned for each in self.of("broken") if each.outcome == "by force"}
        """When a lease was broken by force, by token: the only exception to exclusion, until its holder is notified, at
        its deadline at the latest (see ``breaks``)."""

    def of(self, op: str) -> list[Record]:
        return [each for each in self.records if each.op == op]

    def bad(self, rule: str, text: str) -> None:
        self.found.append(Violation(rule, self.name, text))

    def tokens(self) -> None:
        """A token has one grant. A grant that was asked for after another had returned has the greater token."""
        owners: dict[int, str] = {}
        for grant in self.grants:
            if grant.token in owners:
                self.bad("token twice", f"token {grant.token} went to {owners[grant.token]} and to {grant.owner}")
            owners[grant.token] = grant.owner
        highest, earlier = 0, iter(self.grants)  # by return
        following = next(earlier, None)
        for grant in sorted(self.grants, key=lambda each: each.invoked):
            while following is not None and following.returned < grant.invoked:
                highest = max(highest, following.token)
                following = next(earlier, None)
            if grant.token < highest:
                self.bad("token order", f"{grant.owner} got token {grant.token} after {highest} had been given")

    def ended(self) -> None:
        """A lease that has ended is not valid again, nor renewed. It has ended when it reported so, when its loss was
        notified, when it was released, and when the store refused to renew or release it."""
        over: dict[Holding, float] = {}
        for each in self.records:
            holding = (each.token, each.owner)
            if over.get(holding, NEVER) < each.invoked and each.outcome in ("valid", "renewed"):
                self.bad("revived", f"{each.owner} was told that token {each.token} is {each.outcome} after its end")
            refused = each.op in ("renew", "release") and each.outcome == "refused"
            if each.op == "lost" or refused or each.outcome in ("invalid", "released"):
                over.setdefault(holding, each.returned)

    def departures(self) -> None:
        """A member that was reported as gone holds nothing."""
        gone: dict[Holding, float] = {}
        for each in self.records:
            holding = (each.token, each.owner)
            if each.op == "gone":
                gone.setdefault(holding, each.returned)
            elif each.outcome == "valid" and gone.get(holding, NEVER) < each.invoked and each.token not in self.forced:
                self.bad("not gone", f"{each.owner} holds token {each.token} after others were told that it has gone")

    def breaks(self) -> None:
        """A broken lease is not renewed, so it is valid no longer than the store would have kept it."""
        until: dict[int, float] = {}
        for each in self.of("broken"):
            if each.limit is not None:
                until.setdefault(each.token, each.returned + each.limit)
        for each in self.of("check"):
            if each.outcome == "valid" and until.get(each.token, NEVER) < each.invoked:
                late = each.invoked - until[each.token]
                self.bad("revived", f"{each.owner} holds token {each.token}, which was broken, {late:.3f} s too long")

    def turns(self) -> None:
        """A waiter that asked after another waiter had its place is granted the name after that waiter."""
        tokens = {each.ask: each.token for each in self.grants}
        queued = [each for each in self.of("queued") if each.ask in tokens]  # by when they had their places
        highest, before = 0, iter(queued)
        following = next(before, None)
        for each in sorted(queued, key=lambda one: one.invoked):
            while following is not None and following.returned < each.invoked:
                highest = max(highest, tokens[following.ask])
                following = next(before, None)
            if tokens[each.ask] < highest:
                late = f"one that had been in the queue before it got token {highest}"
                self.bad("out of turn", f"{each.ask} got token {tokens[each.ask]}; {late}")

    def exclusion(self, limit: int) -> None:
        """No more leases are valid at once than ``limit``, and a valid lease is in the store.

        A valid lease has been valid since its grant; if its grant is not known, since its first check. Of each
        operation the time counts that proves least: a span begins when the first returned and ends when the last was
        invoked.
        """
        spans: dict[Holding, tuple[float, float]] = {
            (grant.token, grant.owner): (grant.returned, -NEVER) for grant in self.grants
        }
        highest, higher = -1, iter(sorted(self.grants, key=lambda grant: grant.returned))
        following = next(higher, None)
        for each in sorted(self.of("check"), key=lambda check: check.invoked):
            while following is not None and following.returned < each.invoked:
                highest = max(highest, following.token)
                following = next(higher, None)
            if each.outcome != "valid":
                continue
            if self.forced.get(each.token, NEVER) <= each.invoked:
                continue
            told = f"{each.owner} was told that token {each.token} is valid at {each.invoked:.3f}"
            if limit == 1 and each.token < highest:
                self.bad("overlap", f"{told}; token {highest} had been granted")
            if each.stored is not None and each.stored != each.token:
                self.bad("not in the store", f"{told}; the store had {each.stored}")
            begin, end = spans.get((each.token, each.owner), (each.returned, each.invoked))
            spans[each.token, each.owner] = (min(begin, each.returned), max(end, each.invoked))
        for each in self.records if limit > 1 else ():  # what was renewed or released was held then; of one: theft
            holding = (each.token, each.owner)
            if each.op in ("renew", "release") and each.outcome in ("renewed", "released") and holding in spans:
                begin, end = spans[holding]
                spans[holding] = (begin, max(end, each.invoked))
        edges = [(begin, 1, holding) for holding, (begin, end) in spans.items() if begin <= end]
        edges += [(end, 0, holding) for holding, (begin, end) in spans.items() if begin <= end]
        weights = {(grant.token, grant.owner): grant.weight for grant in self.grants}
        valid: set[Holding] = set()
        for at, opens, holding in sorted(edges, key=lambda edge: (edge[0], -edge[1])):
            if not opens:
                valid.discard(holding)
                continue
            valid.add(holding)
            if sum(weights.get(each, 1) for each in valid) > limit:
                who = ", ".join(f"{owner} (token {token})" for token, owner in sorted(valid))
                self.bad("overlap", f"valid at {at:.3f} for {who}")

    def theft(self) -> None:
        """No lease is renewed or released after another holder was granted the name."""
        for each in self.records:
            if (each.op, each.outcome) not in (("renew", "renewed"), ("release", "released")):
                continue
            later = [grant for grant in self.grants if grant.token > each.token and grant.returned < each.invoked]
            if later:
                to = f"{later[0].owner} had been granted token {later[0].token}"
                self.bad("theft", f"{each.owner} {each.outcome} token {each.token} at {each.invoked:.3f}, when {to}")

    def losses(self, late: float) -> None:
        """A holder that lives is notified of a loss: once, in time, and never after a clean release."""
        told: set[Holding] = set()
        released = {
            (each.token, each.owner): each.returned for each in self.of("release") if each.outcome == "released"
        }
        for each in self.of("lost"):
            holding = (each.token, each.owner)
            if holding in told:
                self.bad("lost twice", f"{each.owner} was told twice of the loss of token {each.token}")
            told.add(holding)
            delay, allowed = each.returned - each.invoked, late if each.limit is None else each.limit
            if delay > allowed:
                self.bad("lost late", f"{each.owner} was told {delay:.3f} s after token {each.token} was lost")
            if holding in released and released[holding] < each.returned:
                self.bad("lost after release", f"{each.owner} had given back token {each.token}")
        found = {(each.token, each.owner) for each in self.of("check") if each.outcome == "invalid"}
        lived = {(each.token, each.owner) for each in self.of("release") if each.outcome != "released"}
        for token, owner in (found & lived) - told:
            self.bad("lost untold", f"{owner} found that token {token} was no longer valid, and was never told")

    def late_writes(self) -> None:
        """No holder writes after it was notified of the loss."""
        told = {(each.token, each.owner): each.returned for each in self.of("lost")}
        for each in self.of("write"):
            if told.get((each.token, each.owner), NEVER) < each.invoked:
                self.bad("write after loss", f"{each.owner} wrote with token {each.token} after it was lost")

    def maybes(self) -> None:
        """A failed acquire, a released lease and a lease of a dead process are no longer in the store after their
        ``limit``."""
        over: dict[str, list[Record]] = defaultdict(list)
        for each in self.records:
            ends = each.op in ("release", "over") or (each.op == "acquire" and each.outcome != "granted")
            if ends and each.ask and each.limit is not None:
                over[each.ask].append(each)
        for look in self.of("seen"):
            for ended in over.get(look.ask, ()):
                since = look.invoked - ended.returned
                if ended.limit is not None and since > ended.limit:
                    what = "was over" if ended.op == "over" else f"ended its {ended.op} as {ended.outcome}"
                    self.bad("not settled", f"{ended.owner or ended.ask} {what}, and still holds {since:.3f} s later")

    def ends(self) -> None:
        """A free name was acquired in time; nothing is left over."""
        for each in self.of("took"):
            took = each.returned - each.invoked
            if each.limit is not None and took > each.limit:
                self.bad("too slow", f"{each.owner} {each.outcome or 'took it'} after {took:.3f} s, not {each.limit:g}")
        for each in self.of("left"):
            self.bad("left over", each.outcome)

    def done(self) -> None:
        """Work that is done once has one outcome."""
        said = {(each.token, each.outcome): each for each in self.of("done")}
        if len(said) > 1:
            who = ", ".join(f"{each.owner} (token {each.token}, {each.outcome})" for each in said.values())
            self.bad("done twice", f"by {who}")

    def resource(self, resource: Resource) -> None:
        """The resource's tokens never decrease and match their owners; no write is lost or invented."""
        owners = {grant.token: grant.owner for grant in self.grants}
        highest, holder = 0, ""
        for token, owner in resource.log:
            if token < highest:
                self.bad("resource order", f"a write of {owner} with token {token} came after {highest}")
            if token == highest and owner != holder:
                self.bad("resource order", f"{holder} and {owner} both wrote with token {token}")
            if owners and token not in owners:
                self.bad("resource order", f"{owner} wrote with token {token}, which nobody was granted")
            elif owners.get(token, owner) != owner:
                self.bad("resource order", f"{owner} wrote with token {token}, which is {owners[token]}'s")
            if token >= highest:
                highest, holder = token, owner
        done = {each.token for each in self.of("done") if each.outcome == "done"}
        if highest and done - {highest}:
            self.bad("done twice", f"it was done with token {min(done)}, and token {highest} wrote")
        if resource.value != len(resource.log):
            self.bad("lost write", f"{len(resource.log)} writes were accepted, the value is {resource.value}")
        logged = Counter((token, owner) for token, owner in resource.log)
        writes = Counter(((each.token, each.owner), each.outcome) for each in self.of("write"))
        for holding in {*logged, *(holding for holding, _ in writes)}:
            token, owner = holding
            sure, perhaps = writes[holding, "accepted"], writes[holding, "unknown"]
            if logged[holding] < sure:
                self.bad(
                    "lost write", f"{owner} was told of {sure} writes with token {token}; {logged[holding]} are there"
                )
            if logged[holding] > sure + perhaps:
                self.bad("unknown write", f"{logged[holding]} writes of {owner} with token {token}; it knows of {sure}")
