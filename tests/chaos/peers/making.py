"""The faults of chaos, aimed at whoever holds a lock of another library."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from leasehold.testing.history import Record

from ..making import Chaos, Plan
from .ledger import Ledger
from .usages import USAGES


class PeerChaos(Chaos):
    """The same servers, proxies and signals. Nobody's wall clock is set, and nobody looks into the store."""

    watched = False

    def __init__(self, usage: str, folder: Path, seed: int, plan: Plan) -> None:
        self.usage = usage
        super().__init__(USAGES[usage].store, folder, seed, plan)
        for name in self.names:
            ledger = Ledger(folder, name)
            ledger.create()
            ledger.close()

    def command(self, config: dict[str, Any]) -> list[str]:
        return [sys.executable, "-m", "chaos.peers.worker", json.dumps({**config, "usage": self.usage})]

    def missing(self, kind: str) -> float:
        return 0.0 if kind == "wall" else super().missing(kind)


def make_chaos_of(usage: str, seconds: float, folder: Path, seed: int, plan: Plan) -> list[Record]:
    return PeerChaos(usage, folder, seed, plan).run(seconds)
