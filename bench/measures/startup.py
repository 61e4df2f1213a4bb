"""What it takes to start: a Python that does nothing, one that imports the library, and a command under a lease."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from ..figures import Row, percentile
from ..processes import ROOT, Setting, environment

NOTHING = "python -c pass"


def run(setting: Setting) -> list[Row]:
    count = 3 if setting.quick else 40
    with tempfile.TemporaryDirectory(dir=ROOT / "bench" / "results") as folder:
        script = os.path.join(os.path.dirname(sys.executable), "leasehold")
        commands = {
            NOTHING: [sys.executable, "-c", "pass"],
            "import leasehold": [sys.executable, "-c", "import leasehold"],
            "connect": [sys.executable, "-c", "import leasehold; leasehold.connect()"],
            "import leasehold.aio": [sys.executable, "-c", "import leasehold.aio"],
            "import filelock": [sys.executable, "-c", "import filelock"],
            "leasehold run true": [script, "run", "bench", "--", "true"],
        }
        environ = {**environment(), "LEASEHOLD_URL": f"sqlite:///{folder}/start.db"}
        times: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(count + 1):
            for name, command in commands.items():
                began = time.perf_counter()
                code = subprocess.run(command, env=environ, cwd=folder, stdout=subprocess.DEVNULL).returncode
                if code:
                    raise RuntimeError(f"{command} exited with {code}")
                if number:  # the first time compiles
                    times[name].append((time.perf_counter() - began) * 1e3)
    took = {name: percentile(each, 50) for name, each in times.items()}
    base = took[NOTHING]
    ours, theirs = next(iter(setting.peers)), "filelock"
    return [
        Row("`python -c pass`", "ms", {ours: base, theirs: base}, best="none", note="the floor of the next four"),
        Row(
            "`import`, over that",
            "ms",
            {ours: took["import leasehold"] - base, theirs: took["import filelock"] - base},
        ),
        Row(
            "`import` and first `connect()`, over that",
            "ms",
            {ours: took["connect"] - base},
            best="none",
            note="`import leasehold` loads most of it only then",
        ),
        Row("`import leasehold.aio`, over that", "ms", {ours: took["import leasehold.aio"] - base}, best="none"),
        Row("`leasehold run NAME -- true`, times that", "×", {ours: took["leasehold run true"] / base}),
    ]
