"""The tables of docs/peers-under-faults.md, from runs whose histories were kept.

    python -m chaos.peers.page folder

judges the runs again, keeps their figures in ``published.json``, and writes the tables between the page's marks.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from ..making import TESTS
from ..report import table
from .judging import Findings, judge_run
from .run import NOTES
from .usages import PLACES, USAGES

PUBLISHED = Path(__file__).with_name("published.json")
PAGE = TESTS.parent / "docs" / "peers-under-faults.md"


def figures_of(kept: Path) -> list[dict[str, Any]]:
    """A row for each usage of which runs came to their end, in the order of the table."""
    rows: dict[str, dict[str, Any]] = {}
    for noted in sorted(kept.glob(f"*/{NOTES}")):
        notes = json.loads(noted.read_text())
        found = judge_run(noted.parent)
        row = rows.setdefault(notes["usage"], {**notes, "found": Findings(), "commit": [], "version": [], "load": []})
        row["found"] = row["found"].plus(found)
        row["commit"] = sorted({*row["commit"], notes["commit"]})
        row["version"] = sorted({*row["version"], notes["version"]})
        row["load"] += notes["load"]
    kept_rows = [rows[usage] for usage in USAGES if usage in rows]
    return [{**row, "found": row["found"]._asdict()} for row in kept_rows]


def results(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        usage, found = USAGES[row["usage"]], Findings(**row["found"])
        of = f"{found.of_stopped:,} / {found.of_cut_off:,}" if found.overlapping else "-"
        faults = f"{found.pauses} / {found.kills} / {found.cuts} / {found.server_kills}"
        told = f"{found.told_in_time} / {found.told_late} / {found.untold}"
        lines.append(
            {
                "library": usage.title,
                "store": PLACES[usage.store],
                "writes": f"{found.writes:,}",
                "stopped / killed / cut off / server killed": faults,
                "lost writes": f"**{found.lost:,}**" if found.lost else "0",
                "overlapping writes": f"**{found.overlapping:,}**" if found.overlapping else "0",
                "of holders stopped / cut off": of,
                "refused": str(found.refused),
                "longest wait": f"{found.longest_wait:.1f} s",
                "overtaken holders told in time / late / never": told,
            }
        )
    return table(lines) if lines else "nothing has been published"


def how(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        usage = USAGES[row["usage"]]
        version = ", ".join(row["version"])
        lines.append({"library": usage.title, "version": version, "used": usage.how, "not made for": usage.not_for})
    # leasehold is used in the same three ways on each store
    unique = [line for at, line in enumerate(lines) if line not in lines[:at]]
    return table(unique) if unique else "nothing has been published"


def made(rows: list[dict[str, Any]]) -> str:
    """With which code, when, for how long, and what else the machine did."""
    commits = sorted({commit for row in rows for commit in row["commit"]})
    loads = [load for row in rows for load in row["load"]]
    seconds = sorted(row["found"]["seconds"] for row in rows)
    if not rows:
        return "nothing has been published"
    lasted = f"{seconds[0]:.0f} to {seconds[-1]:.0f} s"
    return (
        f"Commit and date: {'; '.join(commits)}. One run after the other, {lasted} each, "
        f"on {rows[0]['cores']} cores that ran other tests too: load average {min(loads):.1f} to {max(loads):.1f}."
    )


PARTS = {"made": made, "results": results, "how": how}


def written(page: str, rows: list[dict[str, Any]]) -> str:
    """The page with each part between its marks."""
    for name, part in PARTS.items():
        begin, end = f"<!-- {name}: python -m chaos.peers.page -->", f"<!-- end of {name} -->"
        text = f"{begin}\n\n{part(rows)}\n\n{end}"
        page, found = re.subn(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, text=text: text, page, flags=re.S)
        if found != 1:
            raise SystemExit(f"{PAGE.name} needs one {begin} and {end}, and has {found}")
    return page


def main() -> None:
    rows = figures_of(Path(sys.argv[1]))
    PUBLISHED.write_text(json.dumps(rows, indent=1) + "\n")
    PAGE.write_text(written(PAGE.read_text(), rows))


if __name__ == "__main__":
    main()
