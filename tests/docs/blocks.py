"""Code blocks of Markdown files, and what becomes of them when they are run."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^( *)(`{3,}|~{3,}) *([\w-]*)[^\n]*$")
_NO_RUN = re.compile(r"^\s*<!--\s*no-run:?(.*?)-->\s*$")


_UNTIL_HELD = "for each in {1..300}; do [ $(leasehold ls --json | wc -l) -gt 1 ] && break; sleep 0.1; done"


class Block(NamedTuple):
    language: str
    text: str
    line: int
    """Of its first line of code, from 1."""
    no_run: str | None
    """Why it is not run; None when it is."""


def blocks(markdown: str) -> list[Block]:
    """The fenced blocks. One that follows ``<!-- no-run: why -->`` is not to be run."""
    found = []
    lines = markdown.splitlines()
    at = 0
    no_run = None
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            mark = _NO_RUN.match(lines[at])
            if mark:
                no_run = mark.group(1).strip()
            elif lines[at].strip():
                no_run = None
            at += 1
            continue
        indent, ticks, language = fence.groups()
        body = []
        first = at + 2
        at += 1
        while at < len(lines) and not lines[at].strip().startswith(ticks):
            body.append(lines[at].removeprefix(indent))
            at += 1
        at += 1
        found.append(Block(language, "\n".join(body), first, no_run))
        no_run = None
    return found


class Command(NamedTuple):
    text: str
    output: str


def commands(block: str) -> Iterator[Command]:
    """The ``$ …`` lines of a console block, each with the output that is shown below it."""
    text: str | None = None
    output: list[str] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            if text is not None:
                yield Command(text, "\n".join(output))
            text, output = line[2:], []
        elif text is not None and text.endswith("\\") and not output:
            text += "\n" + line.removeprefix("> ")
        else:
            output.append(line)
    if text is not None:
        yield Command(text, "\n".join(output))


def matches(shown: str, actual: str) -> bool:
    """Whether the output is as shown; ``…`` stands for anything, ends of lines do not count."""
    pattern = ".*?".join(re.escape(part) for part in re.split("…", _trimmed(shown)))
    return re.fullmatch(pattern, _trimmed(actual), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def in_one_shell(texts: Sequence[str], folder: Path, environ: dict[str, str]) -> list[str]:
    """Run the commands in one bash, one after the other: the output of each, standard error included.

    A reader gives a command in the background a second to begin; on a busy machine that may not be enough.
    """
    texts = [re.sub("& sleep 1$", f"& {_UNTIL_HELD}", text) for text in texts]
    mark = "=== end of output ==="
    script = "".join(f"{text}\n__status=$?; echo; echo '{mark}'; (exit $__status)\n" for text in texts)
    ran = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{script}"], cwd=folder, env=environ, capture_output=True, text=True, timeout=100
    )
    return ran.stdout.split(f"\n{mark}\n")[: len(texts)]
