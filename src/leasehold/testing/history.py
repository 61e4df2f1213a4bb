"""The history of leases under test, and its judge. Simulation, chaos and users' own tests share it.

Everybody who takes leases writes down what they did, a :class:`Record` each, on one clock (CLOCK_MONOTONIC is the same
for all processes of a machine); the resource that they write to keeps a log of its own. :func:`check` compares the two
and returns what must not have happened. It knows nothing of leasehold: a history of any lock can be judged.
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
"""How late after its deadline a loss may be told."""


class Record(NamedTuple):
    """One thing that somebody did, between ``invoked`` and ``returned``."""

    op: str
    """What was done, and with which ``outcome``:

    - ``acquire``: granted, or busy, unknown, cancelled (then it may hold nothing ``limit`` seconds later);
    - ``check``: valid or invalid, what the lease said of itself; ``stored`` is the token that the store had then;
    - ``renew``: renewed or refused or unknown;
    - ``release``: released or refused or unknown (with a ``limit``, its ``ask`` holds nothing so many seconds later);
    - ``write``: accepted, refused or unknown, to the resource of that name; ``begin``: one is about to be made;
    - ``lost``: the loss was told at ``returned``; ``invoked`` is the deadline, or when it was lost before that;
    - ``seen``: a look into the store found ``ask`` holding the name;
    - ``queued``: ``ask``, first made at ``invoked``, had its place in the queue, or the lease, at ``returned``. Only of
      those who keep to the queue;
    - ``over``: whoever made ``ask`` is no more, or has no more to do with it: it holds nothing ``limit`` seconds later;
    - ``broken``: an operator has broken this holding, which the store had for ``limit`` more seconds: it is not renewed
      from then on. ``by force``: it was ended at once, and its holder may not have heard yet; else ``told``;
    - ``gone``: somebody was told that this holding has ended, as a member that has left or failed;
    - ``done``: with this holding was done what is to be done once, with that ``outcome``; said by all who hear of it;
    - ``took``: what was to be had from ``invoked`` on was had at ``returned``, ``limit`` seconds allowed;
    - ``left``: something was left over afterwards: ``outcome`` says what;
    - ``fault``: what was done to whom; not judged.
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
    """Of a grant: how much of the name's ``limit`` it takes. A writer takes all of it."""


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
    rule: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.name!r}: {self.text}"


class Resource(NamedTuple):
    """What a fenced counter ended with: its value, and each accepted write in order, as (token, owner)."""

    value: int
    log: Sequence[tuple[int, str]]


class History:
    """Collects records, from any thread; with a path also as lines of JSON, each written at once."""

    def __init__(self, path: str | Path | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.records: list[Record] = []
        self.now = now
        self._mutex = threading.Lock()
        self._file = open(path, "a", buffering=1) if path is not None else None  # noqa: SIM115

    def add(self, op: str, name: str, **fields: Any) -> Record:
        """Note something. What is not given: ``returned`` is now, ``invoked`` the same."""
        fields.setdefault("returned", self.now())
        fields.setdefault("invoked", fields["returned"])
        record = Record(op, name, **fields)
        with self._mutex:
            self.records.append(record)
            if self._file is not None:
                self._file.write(json.dumps(record) + "\n")
        return record

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self.records))

    def __len__(self) -> int:
        return len(self.records)


def load(paths: Iterable[str | Path]) -> list[Record]:
    """The records of several files, in order of time. A line that was cut off by a kill is left out."""
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
    """What must not have happened. Empty when all is well.

    ``exclusive=False`` leaves out what nobody promises when the store has forgotten what it acknowledged; the order of
    tokens, what a lease says of itself and the resource are judged all the same. ``careful``: nobody writes who has
    been told that the lease is lost. ``in_turn``: nobody is overtaken in the queue; whoever was away for longer than a
    place lasts may have been. ``limit``: how many may hold a name at once, or that for each name which is not a lock. A
    record that means nothing to this is a ValueError.
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
    """As :func:`check`, as an assertion."""
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
        """When which token was taken from its holder by force: the one exception to exclusion, until that one hears of
        it, at its deadline at the latest (see ``breaks``)."""

    def of(self, op: str) -> list[Record]:
        return [each for each in self.records if each.op == op]

    def bad(self, rule: str, text: str) -> None:
        self.found.append(Violation(rule, self.name, text))

    def tokens(self) -> None:
        """A token has one grant; a grant that was asked for after another had returned has the higher token."""
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
        """What has ended is not valid again, nor renewed: by its own word, a loss that was told, a clean release, or
        because the store refused to renew it or to take it back."""
        over: dict[Holding, float] = {}
        for each in self.records:
            holding = (each.token, each.owner)
            if over.get(holding, NEVER) < each.invoked and each.outcome in ("valid", "renewed"):
                self.bad("revived", f"{each.owner} was told that token {each.token} is {each.outcome} after its end")
            refused = each.op in ("renew", "release") and each.outcome == "refused"
            if each.op == "lost" or refused or each.outcome in ("invalid", "released"):
                over.setdefault(holding, each.returned)

    def departures(self) -> None:
        """Who is said to have gone holds nothing any more."""
        gone: dict[Holding, float] = {}
        for each in self.records:
            holding = (each.token, each.owner)
            if each.op == "gone":
                gone.setdefault(holding, each.returned)
            elif each.outcome == "valid" and gone.get(holding, NEVER) < each.invoked and each.token not in self.forced:
                self.bad("not gone", f"{each.owner} holds token {each.token} after others were told that it has gone")

    def breaks(self) -> None:
        """What was broken is not renewed, so that it is valid no longer than the store would have kept it then."""
        until: dict[int, float] = {}
        for each in self.of("broken"):
            if each.limit is not None:
                until.setdefault(each.token, each.returned + each.limit)
        for each in self.of("check"):
            if each.outcome == "valid" and until.get(each.token, NEVER) < each.invoked:
                late = each.invoked - until[each.token]
                self.bad("revived", f"{each.owner} holds token {each.token}, which was broken, {late:.3f} s too long")

    def turns(self) -> None:
        """Whoever asked after another had its place is granted the name after that one."""
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
        """No more leases are valid at once than may be; and what says that it is valid is in the store.

        A lease that was valid was so since it was granted; if its grant is not known, since its first check. Each
        instant is taken where it proves least: a span is from the return of the first to the invocation of the last.
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
        """Nothing is renewed or released once another has been granted the name."""
        for each in self.records:
            if (each.op, each.outcome) not in (("renew", "renewed"), ("release", "released")):
                continue
            later = [grant for grant in self.grants if grant.token > each.token and grant.returned < each.invoked]
            if later:
                to = f"{later[0].owner} had been granted token {later[0].token}"
                self.bad("theft", f"{each.owner} {each.outcome} token {each.token} at {each.invoked:.3f}, when {to}")

    def losses(self, late: float) -> None:
        """A loss is told once, soon, and never after a clean release. It is told to whoever lives on to find it out."""
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
        """Nobody writes after having been told."""
        told = {(each.token, each.owner): each.returned for each in self.of("lost")}
        for each in self.of("write"):
            if told.get((each.token, each.owner), NEVER) < each.invoked:
                self.bad("write after loss", f"{each.owner} wrote with token {each.token} after it was lost")

    def maybes(self) -> None:
        """An acquire that did not succeed, what was given back and what the dead have held: of these nothing is in the
        store after their ``limit``."""
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
        """What was free was taken in time; nothing is left over."""
        for each in self.of("took"):
            took = each.returned - each.invoked
            if each.limit is not None and took > each.limit:
                self.bad("too slow", f"{each.owner} {each.outcome or 'took it'} after {took:.3f} s, not {each.limit:g}")
        for each in self.of("left"):
            self.bad("left over", each.outcome)

    def done(self) -> None:
        """What is done once has one outcome."""
        said = {(each.token, each.outcome): each for each in self.of("done")}
        if len(said) > 1:
            who = ", ".join(f"{each.owner} (token {each.token}, {each.outcome})" for each in said.values())
            self.bad("done twice", f"by {who}")

    def resource(self, resource: Resource) -> None:
        """The resource's tokens never go down and are whose they were; no write is lost or invented."""
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
