"""``leasehold ls``, ``show``, ``break``, ``stats``: the leases held now; ``history``, ``forget``: what was done once.

Each command queries the store, leaves it, and only then prints: the reader of the output may close it at any moment.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..core import checks
from ..kinds.once import outcomes
from ..model import LeaseInfo, LockMetrics
from ..threads.locks import Locks
from .options import Options
from .say import held, local, say, span
from .store import checked, leave, open_store
from .table import fields, table

NOBODY = 1
Answer = tuple[str, int]
"""What to print, and the exit code."""


def look(options: Options) -> Answer:
    """Carry out one of these commands."""
    locks = open_store(options)
    if options.command in ("show", "break", "history", "forget"):
        checked(checks.name, options.name)
    try:
        return _COMMANDS[options.command](locks, options)
    finally:
        leave(locks)


def _ls(locks: Locks, options: Options) -> Answer:
    checked(checks.prefix, options.name)
    leases = list(locks.leases(options.name))
    if options.json:
        return as_json([lease.as_dict() for lease in leases]), 0
    if not leases:
        say(f"no lease starts with {options.name!r}" if options.name else "no lease is held")
        return "", 0
    rows = [("NAME", "KIND", "OWNER", "TOKEN", "HELD FOR", "ENDS IN", "WAITING")]
    now = time.time()
    for lease in leases:
        since, left = span(now - lease.acquired.timestamp()), span(lease.expires.timestamp() - now)
        waiting = "?" if lease.waiters is None else str(lease.waiters)
        rows.append((lease.name, lease.kind, lease.owner, str(lease.token), since, left, waiting))
    return table(rows, shorten=(0, 1, 2)), 0


def _show(locks: Locks, options: Options) -> Answer:
    lease = locks.inspect(options.name)
    if options.json:
        return as_json(lease and lease.as_dict()), 0 if lease else NOBODY
    if lease is None:
        say(f"nobody holds {options.name!r}")
        return "", NOBODY
    now = time.time()
    rows = [
        ("name", lease.name),
        ("kind", lease.kind),
        ("owner", lease.owner),
        ("token", str(lease.token)),
        ("since", f"{local(lease.acquired)} ({span(now - lease.acquired.timestamp())})"),
        ("until", f"{local(lease.expires)} (in {span(lease.expires.timestamp() - now)}) unless it is renewed"),
    ]
    if lease.waiters is not None:
        rows.append(("waiting", str(lease.waiters)))
    if lease.data is not None:
        rows.append(("data", json.dumps(lease.data, ensure_ascii=False)))
    return fields(rows), 0


def _break(locks: Locks, options: Options) -> Answer:
    lease = locks.inspect(options.name)
    broken = locks.break_lease(options.name, options.force)
    if options.json:
        answer = {"name": options.name, "broken": broken, "force": options.force}
        return as_json({**answer, "holder": lease and lease.as_dict()}), 0 if broken else NOBODY
    if not broken:
        say(f"nobody holds {options.name!r}")
        return "", NOBODY
    return _what_next(options.name, lease, options.force) + "\n", 0


def _what_next(name: str, lease: LeaseInfo | None, force: bool) -> str:
    who = f" ({held(lease)})" if lease else ""
    if force:
        return f"{name!r} is free now; its former holder{who} may keep working until it notices"
    left = span(lease.expires.timestamp() - time.time()) if lease else "its ttl"
    return (
        f"{name!r} is broken{who}: the holder has been notified; {name!r} becomes free when it stops, "
        f"within {left} at the latest"
    )


def _history(locks: Locks, options: Options) -> Answer:
    found = checked(locks.once, options.name).history()
    if options.json:
        return as_json([each.as_dict() for each in found]), 0
    if not found:
        say(f"no outcome of {options.name!r} is recorded")
        return "", 0
    rows = [("VERSION", "STATUS", "OWNER", "TOKEN", "STARTED", "TOOK", "ERROR")]
    for each in found:
        when = (local(each.started), span(each.duration)) if each.started and each.duration is not None else ("", "")
        rows.append((each.version, each.status, str(each.owner), str(each.token), *when, each.error or ""))
    return table(rows, shorten=(0, 2, 6)), 0


def _forget(locks: Locks, options: Options) -> Answer:
    version, name = options.work_version, options.name
    once, core = checked(locks.once, name), locks._core
    if version is None:
        many = core.drive(outcomes.count(core, name))
        what = repr(name)
        how_many = "" if many is None else f", {many}"
        said = f"{what} is forgotten (all versions{how_many}): it runs again"
    else:
        what = f"{name!r} version {version}"
        said = f"{what} is forgotten: it runs again"
        if last := core.drive(outcomes.later_slot(core, name, version)):
            said = f"{what} is forgotten; it does not run again, as a later slot, {last}, is recorded"
    if not checked(once.forget, version, every_version=version is None):
        say(f"no outcome of {what} is recorded")
        return "", NOBODY
    return f"{said}\n", 0


def _stats(locks: Locks, options: Options) -> Answer:
    metrics = locks.metrics()
    if options.json:
        return as_json(metrics._asdict()), 0
    return table(_figures(metrics), head=False, shorten=(0,)), 0


def _figures(metrics: LockMetrics) -> list[tuple[str, str]]:
    """The rows of ``stats``. Renewals are left out: they are counted per process, and would always be 0 here."""
    rows = [("leases held", str(metrics.total))]
    rows += _shares("of kind", metrics.by_kind) + _shares("by", metrics.by_owner)
    rows += [("average hold", span(metrics.average_hold)), ("longest hold", span(metrics.longest_hold))]
    return [*rows, ("expired, not yet taken over", str(metrics.expired))]


def _shares(what: str, counts: Mapping[str, int]) -> list[tuple[str, str]]:
    ranked = sorted(counts.items(), key=lambda share: (-share[1], share[0]))
    return [(f"  {what} {name}", str(count)) for name, count in ranked]


_COMMANDS: Mapping[str, Callable[[Locks, Options], Answer]] = {
    "ls": _ls,
    "show": _show,
    "break": _break,
    "stats": _stats,
    "history": _history,
    "forget": _forget,
}


def as_json(value: Any) -> str:
    """The value as indented JSON."""
    return json.dumps(value, indent=2) + "\n"
