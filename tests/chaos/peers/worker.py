"""A process that takes one library's locks and writes under them until its standard input ends."""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from leasehold.core import clock
from leasehold.testing.history import History

from ..worker import Worker, die_with_parent, stop_with_input
from .ledger import Ledger
from .libraries import Library, Taken
from .usages import USAGES

AGAIN = 0.05
"""How long a worker waits after an error before it asks once more."""


class Contender(Worker):
    """The same body for every library: begin; then several times keep, read, work, ask, write."""

    def __init__(self, config: dict[str, object], library: Library, history: History) -> None:
        folder = str(config["folder"])
        names = [str(name) for name in config["names"]]  # type: ignore[attr-defined]
        super().__init__(str(config["me"]), folder, "naive", names, library.ttl, 1, (history, None))
        self.library = library
        self.ledgers = {name: Ledger(Path(folder), name) for name in names}

    def work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.turn(random.choice(self.names), stop)
            time.sleep(random.uniform(0, 0.01))

    def turn(self, name: str, stop: threading.Event) -> None:
        self.history.add("ask", name, owner=self.me)
        try:
            taken = self.library.acquire(name, stop)
        except Exception as error:
            self.history.add("failed", name, owner=self.me, outcome=f"acquire: {type(error).__name__}")
            time.sleep(AGAIN)
            return
        if taken is None:
            return
        holding = clock.now_us()  # names the holding; the library knows nothing of it
        self.history.add("acquire", name, owner=self.me, token=holding, outcome="granted")
        long = random.random() < 0.015 or os.pread(self.wanted[name], 4, 0) == b"long"
        self.say_who_holds(name, f"{self.me} {holding} {'long' if long else 'short'}")
        if self.ledgers[name].begin(holding, taken.token):
            self.write_under(name, holding, taken, long)
        else:
            self.history.add("write", name, owner=self.me, token=holding, outcome="refused")
        invoked = clock.now()
        outcome = self.asked("release", name, taken.release)
        self.history.add("release", name, owner=self.me, token=holding, invoked=invoked, outcome=outcome)
        self.say_it_is_over(name, holding)

    def write_under(self, name: str, holding: int, taken: Taken, long: bool) -> None:
        held, ledger = {"owner": self.me, "token": holding}, self.ledgers[name]
        for _ in range(60 if long else random.randint(1, 12)):
            if self.asked("keep", name, taken.keep) != "yes":
                self.history.add("check", name, outcome="invalid", **held)
                return
            value = ledger.read()
            time.sleep(random.uniform(0, 0.1 if long else 0.004))
            if self.library.asks and self.asked("mine", name, taken.mine) != "yes":
                self.history.add("check", name, outcome="invalid", **held)
                return
            written = ledger.write(holding, taken.token, value + 1)
            self.history.add("write", name, outcome="accepted" if written else "refused", **held)
            if not written:
                return

    def asked(self, what: str, name: str, call: Callable[[], bool | None]) -> str:
        """What the library says: yes, no, or the error that it raised."""
        try:
            said = call()
        except Exception as error:
            self.history.add("failed", name, owner=self.me, outcome=f"{what}: {type(error).__name__}")
            return type(error).__name__
        return "no" if said is False else "yes"


def main() -> None:
    die_with_parent()
    logging.disable(logging.CRITICAL)
    threading.excepthook = lambda args: None  # a library's thread that ends with an error tells only stderr of it
    config = json.loads(sys.argv[1])
    usage = USAGES[config["usage"]]
    library = usage.library(config["url"], Path(config["folder"]), config["ttl"], usage.asks)
    history = History(Path(config["folder"]) / f"{config['me']}.history", now=clock.now)
    stop = threading.Event()
    stop_with_input(stop)
    try:
        Contender(config, library, history).work(stop)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    library.close()
    history.close()


if __name__ == "__main__":
    main()
