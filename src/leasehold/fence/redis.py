"""Fences in Redis and Valkey: one script compares the tokens and runs the commands.

    guard = fence.redis.Fence(client, "account:1:fence")
    guard.run(lease, ("SET", "account:1", "50"), ("INCR", "writes"))

Keep the key of the fence: if it is deleted, an old holder can write again. In a cluster all keys must be in one slot
(``{account:1}:fence`` and ``{account:1}``), and ``keys=`` names the keys that the commands use.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from typing import Any, TypeAlias

from ..core.lease import BaseLease
from . import StaleToken, token

Command: TypeAlias = "Sequence[str | bytes | int | float]"

_SCRIPT = importlib.resources.files(__package__).joinpath("guard.lua").read_text()


class Fence:
    """Guards what is written through it.

    Args:
        client: a client of redis-py or valkey-py, of threads or asyncio.
        key: the key that stores the greatest token.
    """

    def __init__(self, client: Any, key: str) -> None:
        self.key = key
        self._script = client.register_script(_SCRIPT)

    def run(self, lease: BaseLease, *commands: Command, keys: Sequence[str] = ()) -> list[Any]:
        """Run the commands in one step and return their replies.

        As in every script of Redis, a command that fails does not undo the commands before it.

        Args:
            lease: the lease that guards the keys.
            commands: each a sequence of the command's words, such as ``("SET", "account:1", "50")``.
            keys: the keys that the commands use; needed in a cluster. Default: none.

        Raises:
            StaleToken: a later holder has written.
            LeaseLost: the lease can no longer be trusted.
            ValueError: the lease is not exclusive.
        """
        return _replies(lease, self._script(keys=[self.key, *keys], args=_words(lease, commands)))

    async def run_async(self, lease: BaseLease, *commands: Command, keys: Sequence[str] = ()) -> list[Any]:
        """As :meth:`run`, for a client of ``redis.asyncio``. Awaited; ``lease``, ``commands``, ``keys`` as there."""
        return _replies(lease, await self._script(keys=[self.key, *keys], args=_words(lease, commands)))


def _words(lease: BaseLease, commands: Sequence[Command]) -> list[Any]:
    return [token(lease), *(word for command in commands for word in (len(command), *command))]


def _replies(lease: BaseLease, answer: list[Any]) -> list[Any]:
    if not answer[0]:
        raise StaleToken(lease.name, lease.token)
    return answer[1:]
