"""What a client of MongoDB has sent."""

from __future__ import annotations

from typing import Any

from pymongo import monitoring


class Sent(monitoring.CommandListener):
    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.names: list[str] = []

    def started(self, event: Any) -> None:
        self.commands.append(event.command)
        self.names.append(event.command_name)

    def succeeded(self, event: Any) -> None:
        pass

    def failed(self, event: Any) -> None:
        pass
