"""``make mutants``: break a copy of the library on purpose, one fault at a time, and see the tests go red.

Small worlds judge first, then random worlds; a fault that these do not see, as in threads or in a server's own code, is
judged by a part of the conformance suite. Each judge has to be green on the healthy copy first. A fault that nothing
notices is a survivor, and fails the run: a test is missing. So does one that is unclear.
``python -m mutants.run WORD…`` takes those whose title has one of the words.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .faults import MUTANTS
from .mutant import Mutant

ROOT = Path(__file__).parents[2]
SEEDS = 59
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--timeout=0")
RED = r"^FAILED (\S+::.+?)(?: - |$)"  # an ERROR is a server that did not start, or the like
KILLED, SURVIVED, UNCLEAR = "killed", "SURVIVED", "UNCLEAR"


class Judge(NamedTuple):
    """A command of Python's that fails when it notices a fault; ``noticed`` finds in its output what has."""

    name: str
    folder: str
    command: tuple[str, ...]
    noticed: str = RED


class Limits(NamedTuple):
    """How many seconds a run may take: of the processor, which load does not change, and in all."""

    cpu: int
    wall: float


class Ran(NamedTuple):
    code: int
    output: str
    cpu: float
    wall: float
    hung: str = ""
    """Which limit ended it, if one did."""


SMALL = Judge("small worlds", "", (*PYTEST, "tests/simulation/test_small_worlds.py"))
WORLDS = Judge(
    "random worlds",
    "tests",
    ("-m", "simulation.run", "0", str(SEEDS)),
    r"^simulation of (seed \d+(?:: \d+ violations| did not end: RuntimeError))",  # the latter: time stands still
)
LIMITED = 'ulimit -S -c 0; ulimit -S -t "$0"; exec "$@"'
HEALTHY = Limits(cpu=600, wall=900.0)


def judges(mutant: Mutant) -> list[Judge]:
    if not mutant.conformance:
        return [SMALL, WORLDS]
    command = (*PYTEST, "-k", mutant.conformance, *files(mutant))
    return [Judge(f"{', '.join(files(mutant))} -k '{mutant.conformance}'", "", command)]


def files(mutant: Mutant) -> list[str]:
    """The tests that judge what simulation cannot see."""
    if "/" in mutant.special:
        return [f"tests/{mutant.special}.py"]
    if mutant.special:
        return [f"tests/stores/test_{mutant.special}.py"]
    return [f"tests/conformance/test_{store}.py" for store in mutant.stores]


def main(words: list[str]) -> int:
    chosen = [each for each in MUTANTS if not words or any(word in each.title for word in words)]
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="leasehold-mutants-") as folder:
        copy = Path(folder)
        for part in ("src", "tests", "docs", "pyproject.toml"):
            source = ROOT / part
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / part)
        (copy / ".cache").symlink_to(ROOT / ".cache")  # the servers' programs
        limits = {}
        for judge in dict.fromkeys(judge for each in chosen for judge in judges(each)):
            ran = run(copy, judge, HEALTHY)
            if ran.code or ran.hung:
                print(f"red without any fault: {judge.name}\n{ran.output[-3000:]}")
                return 2
            limits[judge] = limits_of(ran)
            print(f"healthy  {ran.wall:5.1f} s  {judge.name}: {ran.cpu:.1f} s of CPU", flush=True)
        for mutant in chosen:
            began = time.monotonic()
            verdict, why = decide(copy, mutant, limits)
            verdicts.append((verdict, mutant.title))
            print(f"{verdict:8} {time.monotonic() - began:5.1f} s  {mutant.title} [{why}]", flush=True)
    bad = [each for each in verdicts if each[0] != KILLED]
    print(f"\n{len(chosen) - len(bad)} of {len(chosen)} mutants killed")
    for verdict, title in bad:
        print(f"{verdict}: {title}")
    return 1 if bad or not chosen else 0


def decide(copy: Path, mutant: Mutant, limits: dict[Judge, Limits]) -> tuple[str, str]:
    """Whether the mutant is killed, and what noticed it."""
    for judge in judges(mutant):
        with broken(copy, mutant):
            verdict, why = sentence(copy, judge, limits[judge])
        if verdict == KILLED and mutant.conformance and "::" in why:
            # It has to do with real time. The machine may be busier now than it was for the first healthy run.
            control = Judge(why, "", (*PYTEST, why))
            if run(copy, control, HEALTHY).code:
                return UNCLEAR, f"{why} is red without the fault too"
        if verdict != SURVIVED:
            return verdict, why
    return SURVIVED, ""


def sentence(copy: Path, judge: Judge, limits: Limits) -> tuple[str, str]:
    """What one judge says. One that does not end is asked again: what takes far more CPU time than it should, twice,
    does not end because of the fault; what is only slow may be so because of the machine, and shows nothing."""
    ran = run(copy, judge, limits)
    if ran.hung:
        first, ran = ran, run(copy, judge, limits)
        if ran.hung:
            endless = first.hung == ran.hung == "cpu"
            return KILLED if endless else UNCLEAR, f"{judge.name} did not end within {limits}, twice"
    if not ran.code:
        return SURVIVED, ""
    found = re.search(judge.noticed, ran.output, re.MULTILINE)
    if found is None:
        return UNCLEAR, f"{judge.name} cannot be run: {ran.output[-2000:]}"
    return KILLED, found[1]


def limits_of(healthy: Ran) -> Limits:
    return Limits(cpu=int(20 + 5 * healthy.cpu), wall=300 + 10 * healthy.wall)


@contextmanager
def broken(copy: Path, mutant: Mutant) -> Iterator[None]:
    path = copy / "src" / "leasehold" / mutant.file
    healthy = path.read_text()
    if healthy.count(mutant.old) != 1:
        sys.exit(f"{mutant.title}: its text is {healthy.count(mutant.old)} times in {mutant.file}: mend the mutant")
    path.write_text(healthy.replace(mutant.old, mutant.new))
    try:
        yield
    finally:
        path.write_text(healthy)


def run(copy: Path, judge: Judge, limits: Limits) -> Ran:
    environ = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}

    began, spent = time.monotonic(), cpu_of_children()
    process = subprocess.Popen(
        ["sh", "-c", LIMITED, str(limits.cpu), sys.executable, *judge.command],
        cwd=copy / judge.folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    hung = ""
    try:
        output = process.communicate(timeout=limits.wall)[0]
    except subprocess.TimeoutExpired:
        hung = "wall"
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0]
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode == -signal.SIGXCPU:
        hung = "cpu"
    return Ran(process.returncode, output, cpu_of_children() - spent, time.monotonic() - began, hung)


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
