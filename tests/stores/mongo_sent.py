"""What a client of MongoDB has sent."""

from __future__ import annotations

import time
from typing import Any

from pymongo import monitoring


class Sent(monitoring.CommandListener):
    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.names: list[str] = []
        self.answered: list[float] = []
        """When changes of records were answered."""

    def started(self, event: Any) -> None:
        self.commands.append(event.command)
        self.names.append(event.command_name)

    def succeeded(self, event: Any) -> None:
        if event.command_name == "findAndModify":
            self.answered.append(time.monotonic())

    def failed(self, event: Any) -> None:
        pass

    def acquires(self) -> list[Any]:
        """The arguments of the acquires, in order."""
        changes = [each for each in self.commands if "findAndModify" in each]
        arguments = [each["update"][0]["$set"]["ask"]["$literal"] for each in changes]
        return [each for each in arguments if "permit" in each]

    def opened(self) -> list[str]:
        """By which ways it has begun to listen."""
        return [
            "calls" if "find" in each else "stream"
            for each in self.commands
            if each.get("tailable") or "$changeStream" in str(each.get("pipeline", ""))
        ]
