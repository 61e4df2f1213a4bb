"""What the judge of histories has to know about chaos, and what it does not judge by itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from leasehold.core import timing
from leasehold.testing.history import NEVER, Record, Violation, check

from .resource import Counters
from .stores import TTL, setup_of

JUMP = 5.0
"""What a step of a clock adds to a token, at the least, in seconds."""
AFTERMATH = 12.0
"""For how long a killed server may be felt: it starts, or others elect a leader."""
SOON = 0.05
"""Shorter than the safety margin of a ttl of one second: until then a valid check is good."""
WAKING = 0.1
"""What a process that was stopped may take until its threads run again."""
LOADED = 0.25
"""How late a loss may be told on a machine that is as busy as this one; what it really was is in the report."""

UNDER_WAY = 4.0
"""How long a message may be, and what is to be made up for has to wait, when its process was stopped or cut off."""


def judged(store: str, records: list[Record], folder: Path, late: float = LOADED) -> tuple[list[Violation], int]:
    """What must not have been; and how often two held a name where the store cannot promise otherwise: then each of two
    servers that both lead may also confirm the release of its own holder."""
    found = judge(store, records, folder, late)
    if setup_of(store).exclusive:
        return found, 0
    kept = [each for each in judge(store, records, folder, late, exclusive=False) if each.rule != "theft"]
    return kept, len(found) - len(kept)


def judge(
    store: str, records: list[Record], folder: Path, late: float = LOADED, exclusive: bool = True
) -> list[Violation]:
    """The history, with what the judge has to know: writes that a kill cut off, and how long who was stopped."""
    stops = pauses(records)
    giving = refusals(records)
    ended = endings(store, records, late)
    seen: list[Record] = [*deaths(store, records, late)]
    begun: dict[tuple[int, str], int] = Counter()
    for each in records:
        if each.op == "begin":
            begun[each.token, each.owner] += 1
        elif each.op == "write":
            begun[each.token, each.owner] -= 1
        elif each.op == "lost":
            seen.append(each._replace(limit=late + stopped(stops, each) + giving.get((each.token, each.owner), 0.0)))
        elif each.op == "took":
            seen.append(last_taken(store, records, each, late))
        if each.op not in ("lost", "took"):
            seen.append(each._replace(limit=ended[id(each)]) if id(each) in ended else each)
    seen += [each for each in takeovers(records, setup_of(store).late + late) if not each.outcome]
    names = {(each.token, each.owner): each.name for each in records if each.op == "begin"}
    for (token, owner), left in begun.items():
        seen += [Record("write", names[token, owner], owner, token, outcome="unknown")] * left
    found = check(seen, Counters(folder / "resource.db").results(), exclusive=exclusive)
    return found + (refused_too_soon(records) if exclusive else [])


def endings(store: str, records: list[Record], late: float) -> dict[int, float]:
    """Of each that has given up or given back: for how long it may still be found in the store. Where the clock is set
    back, that cannot be said."""
    setup = setup_of(store)
    if setup.by_clock:
        return {}
    servers = [each.returned for each in records if (each.op, each.outcome) == ("fault", "server")]
    own: dict[str, list[Record]] = {}
    for each in records:
        if each.op == "fault" and each.outcome in ("pause", "cut"):
            own.setdefault(each.owner, []).append(each)
    found = {}
    for each in records:
        if each.op != "release" and (each.op != "acquire" or each.outcome == "granted"):
            continue
        limit = TTL + setup.late + late
        faults = own.get(each.owner.partition(".")[0], [])
        if any(
            fault.invoked < each.returned + TTL and each.invoked < fault.returned + (fault.limit or 0.0) + UNDER_WAY
            for fault in faults
        ):
            limit += UNDER_WAY
        if any(each.invoked - AFTERMATH < at < each.returned + limit for at in servers):
            limit += AFTERMATH
        found[id(each)] = limit
    return found


def deaths(store: str, records: list[Record], late: float) -> list[Record]:
    """Who was killed, if anything of it was found in the store: its lease lasts as long as a ttl, its place in a queue
    (and a first term, if it is granted the name there) as long as that."""
    setup = setup_of(store)
    kills = {each.owner: each for each in records if (each.op, each.outcome) == ("fault", "kill")}
    servers = [each.returned for each in records if (each.op, each.outcome) == ("fault", "server")]
    found: dict[str, Record] = {}
    for each in records:
        kill = kills.get(each.ask.partition(".")[0]) if each.op == "seen" else None
        if kill is None or setup.by_clock:
            continue
        lasts = TTL if each.token == kill.token else timing.WAITER_TTL + timing.FIRST_TERM
        limit = lasts + setup.late + late
        if any(kill.returned - AFTERMATH < at < kill.returned + limit for at in servers):
            limit += AFTERMATH
        found[each.ask] = Record("over", each.name, each.ask, 0, kill.invoked, kill.returned, "", each.ask, limit)
    return list(found.values())


def last_taken(store: str, records: list[Record], took: Record, late: float) -> Record:
    """When a name was had at the end, with how long it may have taken: a ttl and what comes on top of it, and a second
    for each of the dead who may be in its queue; unless a server was away just before, or its clock was set."""
    setup = setup_of(store)
    faults = [each for each in records if each.op == "fault"]
    felt = ("server", "clock", "step")
    if setup.by_clock or any(each.outcome in felt and took.invoked - each.returned < AFTERMATH for each in faults):
        return took
    holders = {id(each) for each in hits(records, "kill")}
    dead = [each for each in faults if each.outcome == "kill" and id(each) not in holders]
    waiting = sum(took.invoked - each.returned < timing.WAITER_TTL and each.name == took.name for each in dead)
    return took._replace(limit=min(took.limit or 0.0, TTL + setup.late + late + waiting))


def refused_too_soon(records: list[Record]) -> list[Violation]:
    """Writes that the resource refused although their lease had been checked just before: its margin is longer."""
    checked: dict[tuple[int, str], float] = {}
    found = []
    for each in records:
        holding = (each.token, each.owner)
        if (each.op, each.outcome) == ("check", "valid"):
            checked[holding] = each.invoked
        elif (each.op, each.outcome) == ("write", "refused") and each.returned - checked.get(holding, 0.0) < SOON:
            found.append(Violation("overlap", each.name, f"{each.owner} was refused {SOON:g} s after a valid check"))
    return found


def refusals(records: list[Record]) -> dict[tuple[int, str], float]:
    """How long it took until a release was refused. Whoever gives a lease back is told of its loss by that."""
    given = [each for each in records if each.op == "release" and each.outcome != "released"]
    return {(each.token, each.owner): each.returned - each.invoked for each in given}


def pauses(records: list[Record]) -> list[Record]:
    """Who was stopped, with how long it was as ``limit``: longer than was meant if the server was being killed."""
    faults = [each for each in records if each.op == "fault"]
    found = []
    for at, stop in enumerate(faults):
        if stop.outcome == "pause":
            ends = [each.returned for each in faults[at:] if each.outcome == "resume" and each.owner == stop.owner]
            found.append(stop._replace(limit=ends[0] - stop.returned) if ends else stop)
    return found


def stopped(stops: list[Record], told: Record) -> float:
    """For how long of the time between a loss and its being told the process stood still, and a moment to wake up."""
    me = told.owner.partition(".")[0]
    spans = [(stop.returned, stop.returned + (stop.limit or 0.0)) for stop in stops if stop.owner == me]
    each = [min(told.returned, end + WAKING) - max(told.invoked, begin) for begin, end in spans]
    return sum(span for span in each if span > 0)


def troubles(fault: Record, kill: Record, due: float) -> bool:
    """Whether this fault, or what it leaves behind, could be felt by whoever takes over after that kill until then.

    A wall clock is no trouble at all, and who is stopped or killed with another name troubles nobody here."""
    if fault.outcome == "wall" or (fault.outcome in ("pause", "kill") and fault.name != kill.name):
        return False
    lasts = AFTERMATH if fault.outcome in ("server", "clock", "step") else (fault.limit or 0.0) + 0.2
    return fault.returned <= due and kill.returned <= fault.returned + lasts


def told_to_end(records: list[Record]) -> list[float]:
    """When all processes of a run were: of several runs, one after the other."""
    return [each.returned for each in records if (each.op, each.outcome) == ("fault", "rest")]


def next_after(moment: float, times: list[float]) -> float:
    return min((each for each in times if each >= moment), default=NEVER)


def takeovers(records: list[Record], late: float = 0.0) -> list[Record]:
    """Of each kill that hit a holder when the next had the name, as ``took``; its ``outcome`` says what else was wrong.

    If nobody ever had it, and there was time, that is as late as the last acquire. ``late`` is what may come on top
    of the ttl. Faults that came later than the takeover was due are no excuse for it; that all were told to end
    before that is one, because those who had waited have gone then."""
    ends = told_to_end(records)
    last = max((each.returned for each in records if each.op == "acquire"), default=0.0)
    faults = [each for each in records if each.op == "fault" and each.outcome not in ("resume", "rest")]
    grants: dict[str, list[Record]] = {name: [] for name in {each.name for each in records}}
    for each in records:
        if each.op == "acquire" and each.outcome == "granted":
            grants[each.name].append(each)
    found = []
    for kill in hits(records, "kill"):
        due = kill.returned + TTL + 0.25
        other = [each.outcome for each in faults if each is not kill and troubles(each, kill, due)]
        later = [each.returned for each in grants[kill.name] if each.token > kill.token]
        took = kill._replace(op="took", outcome=", ".join(other), limit=TTL + late)
        if later or last > kill.returned + TTL + late:
            took = took._replace(returned=min(later, default=last))
            rest = next_after(kill.invoked, ends)
            ended = rest < kill.returned + TTL + late and took.returned > rest
            found.append(took._replace(outcome=took.outcome or "rest") if ended else took)
    return found


def hits(records: list[Record], *kinds: str) -> list[Record]:
    """The faults that hit whoever held the name then: it had not begun to give it back, or had not done so yet."""
    released = {(each.name, each.token): each.returned for each in records if each.op == "release"}
    faults = [each for each in records if each.op == "fault" and each.outcome in kinds]
    return [each for each in faults if released.get((each.name, each.token), each.returned) >= each.returned]


def latencies(records: list[Record]) -> dict[str, list[float]]:
    """After a kill: from then to the next grant, less the ttl, if nobody else was in trouble meanwhile. Of a loss at
    its deadline: from there to its being told, if the process did not stand still."""
    stops = pauses(records)
    given = {(each.token, each.owner): each.invoked for each in records if each.op == "release"}
    losses = [
        each.returned - each.invoked
        for each in records
        if each.op == "lost"
        and each.invoked < each.returned
        and not stopped(stops, each)
        and given.get((each.token, each.owner), each.returned) >= each.invoked  # else its release told it
    ]
    ends = told_to_end(records)
    found = [each for each in takeovers(records) if not each.outcome]
    took = [each for each in found if each.returned <= next_after(each.invoked, ends)]
    undisturbed = [each.returned - each.invoked - TTL for each in took]
    return {"takeover": sorted(undisturbed), "loss": sorted(losses)}


def steps_seen(records: list[Record]) -> int:
    """How many steps of the server's clock show in the tokens, which are made of it: those that set it further ahead
    than it had been. A server that did not see its clock set would show none."""
    steps = [each.returned for each in records if each.op == "fault" and each.outcome == "clock"]
    seen: set[float] = set()
    last: dict[str, Record] = {}
    for each in sorted((each for each in records if (each.op, each.outcome) == ("acquire", "granted")), key=by_token):
        before = last.get(each.name)
        last[each.name] = each
        if before is not None and each.token / 1e6 - before.token / 1e6 > abs(each.returned - before.returned) + JUMP:
            seen |= {max((step for step in steps if step <= each.returned), default=0.0)}
    return len(seen - {0.0})


def by_token(record: Record) -> int:
    return record.token
