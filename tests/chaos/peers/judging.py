"""What a run shows: writes that were lost, writes that overlapped, the longest wait, and what holders were told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from leasehold.testing.history import NEVER, Record, load

from ..judging import hits, pauses
from .ledger import Step, results

WAKING = 0.2
"""How long after a fault of its own a process may still feel it."""


class Findings(NamedTuple):
    """Figures of one run, or of several of one usage."""

    seconds: float = 0.0
    writes: int = 0
    """Those that the resource accepted."""
    refused: int = 0
    """Those that it refused, because of the token."""
    pauses: int = 0
    kills: int = 0
    cuts: int = 0
    server_kills: int = 0
    lost: int = 0
    """Accepted writes that are not in the value of the counter."""
    overlapping: int = 0
    """Accepted writes of a holder after a later one had begun."""
    of_stopped: int = 0
    """Those of holders that had been stopped."""
    of_cut_off: int = 0
    """Those of others, that had been cut off from the server."""
    told_in_time: int = 0
    """Holders that another followed while they held: those that found out and wrote nothing after that."""
    told_late: int = 0
    """Those that wrote after it, and were told then."""
    untold: int = 0
    """Those that were never told."""
    longest_wait: float = 0.0
    """Of a process that waited for a name, without the time of its own faults."""
    stuck: int = 0
    """Processes that did not end by themselves."""
    failed: int = 0
    """Calls that raised."""

    def plus(self, other: Findings) -> Findings:
        added = Findings(*(one + two for one, two in zip(self, other, strict=True)))
        return added._replace(longest_wait=max(self.longest_wait, other.longest_wait))


def judge_run(folder: Path) -> Findings:
    return judge_peers(load(folder.glob("*.history")), results(folder))


def judge_peers(records: list[Record], resources: dict[str, tuple[int, list[Step]]]) -> Findings:
    ops = Counter((each.op, each.outcome) for each in records)
    wrote = {name: sum(step.what == "wrote" for step in log) for name, (_, log) in resources.items()}
    late = {name: overlapping(log) for name, (_, log) in resources.items()}
    told = Counter(
        outcome for name, (_, log) in resources.items() for outcome in told_of_the_next(records, name, log, late[name])
    )
    why = Counter(cause for name in resources for cause in causes(records, name, late[name]))
    return Findings(
        seconds=records[-1].returned - records[0].returned if records else 0.0,
        writes=sum(wrote.values()),
        refused=ops["write", "refused"],
        pauses=len(hits(records, "pause")),
        kills=len(hits(records, "kill")),
        cuts=len(hits(records, "cut")),
        server_kills=ops["fault", "server"],
        lost=sum(wrote[name] - value for name, (value, _) in resources.items()),
        overlapping=sum(map(len, late.values())),
        of_stopped=why["pause"],
        of_cut_off=why["cut"],
        told_in_time=told["in time"],
        told_late=told["late"],
        untold=told["never"],
        longest_wait=longest_wait(records),
        stuck=sum(each.op == "left" for each in records),
        failed=sum(each.op == "failed" for each in records),
    )


def overlapping(log: Sequence[Step]) -> list[Step]:
    """What holders wrote after a later holder had begun. Their numbers say who was granted the name later; which step
    came first, the resource says."""
    latest = 0
    found = []
    for step in log:
        if step.what == "began":
            latest = max(latest, step.holding)
        elif step.holding < latest:
            found.append(step)
    return found


def causes(records: list[Record], name: str, late: Sequence[Step]) -> list[str]:
    """Of each late write, which fault its process had had since it was granted the name: pause, cut, or none."""
    grants = {each.token: each for each in records if each.op == "acquire" and each.name == name}
    faults = pauses(records) + [each for each in records if (each.op, each.outcome) == ("fault", "cut")]
    found = []
    for step in late:
        grant = grants.get(step.holding)
        own = [
            each.outcome
            for each in faults
            if grant is not None
            and each.owner == grant.owner
            and each.returned < step.at
            and grant.returned < each.returned + (each.limit or 0.0)
        ]
        found.append(own[0] if own else "none")
    return found


def told_of_the_next(records: list[Record], name: str, log: Sequence[Step], late: Sequence[Step]) -> list[str]:
    """Of each holding that was released after a later one had begun: whether its holder was told, and when.

    A holder is told by whatever it asks the library, or by an error or a no of the release, or by the resource. Those
    that were killed had nobody to tell.
    """
    own = [each for each in records if each.name == name]
    releases = [each for each in own if each.op == "release"]
    told = {each.token for each in own if each.outcome in ("invalid", "refused")}
    told |= {each.token for each in releases if each.outcome != "yes"}
    wrote_late = {step.holding for step in late}
    begun = [step for step in log if step.what == "began"]
    found = []
    for release in releases:
        overtaken = any(step.holding > release.token and step.at < release.invoked for step in begun)
        if overtaken and release.token not in told:
            found.append("never")
        elif overtaken:
            found.append("late" if release.token in wrote_late else "in time")
    return found


def longest_wait(records: list[Record]) -> float:
    """From the first time that a process asked to its grant, less what its own faults took of that. A process that
    still waits when all are told to end has waited until then."""
    own: dict[str, list[tuple[float, float]]] = {}
    for each in pauses(records) + [each for each in records if each.op == "fault" and each.outcome == "cut"]:
        own.setdefault(each.owner, []).append((each.returned, each.returned + (each.limit or 0.0) + WAKING))
    rest = min((each.returned for each in records if (each.op, each.outcome) == ("fault", "rest")), default=NEVER)
    killed = {each.owner for each in records if (each.op, each.outcome) == ("fault", "kill")}
    since: dict[str, float] = {}
    waits = []
    for each in records:
        if each.op == "ask" and each.returned < rest:
            since.setdefault(each.owner, each.returned)
        elif (each.op, each.outcome) == ("acquire", "granted") and each.owner in since:
            waits.append((each.owner, since.pop(each.owner), min(each.returned, rest)))
    if rest < NEVER:
        waits += [(owner, at, rest) for owner, at in since.items() if owner not in killed]
    return max((end - begin - shared(begin, end, own.get(owner, [])) for owner, begin, end in waits), default=0.0)


def shared(begin: float, end: float, spans: Sequence[tuple[float, float]]) -> float:
    """How much of the time from ``begin`` to ``end`` lies in these spans."""
    return sum(max(0.0, min(end, until) - max(begin, since)) for since, until in spans)
