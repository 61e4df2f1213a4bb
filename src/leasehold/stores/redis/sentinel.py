"""Which server is the primary, as the Sentinels say. A connection to it is made only when it says so itself."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from .pool_tasks import close
from .scripts import pack
from .url import Address

_SHARE = 0.5
"""Of the limit, at most, for one Sentinel: one that is away must not use it up."""


def make_in_thread(kind: Any, address: Address, options: dict[str, Any], limit: float) -> Any:
    """A connection to the primary, unconnected but for its address being asked."""
    problem: Exception | None = None
    for host, port in address.hosts:
        patience = min(limit * _SHARE, 1.0)
        sentinel = kind(
            host=host,
            port=port,
            socket_timeout=patience,
            socket_connect_timeout=patience,
            **_sentinel(address, options),
        )
        try:
            sentinel.connect()
            sentinel.send_packed_command((_question(address),), check_health=False)
            found = _read(sentinel.read_response(disable_decoding=True), address)
        except (RedisError, OSError) as error:
            problem = error
            continue
        finally:
            sentinel.disconnect()
        primary = kind(host=found[0], port=found[1], socket_timeout=limit, socket_connect_timeout=limit, **options)
        try:
            primary.connect()
            primary.send_packed_command((_ROLE,), check_health=False)
            _must_lead(primary.read_response(disable_decoding=True))
        except BaseException:
            primary.disconnect()
            raise
        return primary
    raise problem or RedisConnectionError("no Sentinel answers")


async def make_in_task(kind: Any, address: Address, options: dict[str, Any], limit: float) -> Any:
    """A connection to the primary, connected."""
    problem: Exception | None = None
    for host, port in address.hosts:
        sentinel = kind(host=host, port=port, socket_connect_timeout=limit, **_sentinel(address, options))
        try:
            async with asyncio.timeout(min(limit * _SHARE, 1.0)):
                await sentinel.connect()
                await sentinel.send_packed_command((_question(address),), check_health=False)
                found = _read(await sentinel.read_response(disable_decoding=True), address)
        except (RedisError, OSError) as error:
            problem = error
            continue
        finally:
            close(sentinel)
        primary = kind(host=found[0], port=found[1], socket_connect_timeout=limit, **options)
        try:
            async with asyncio.timeout(limit):
                await primary.connect()
                await primary.send_packed_command((_ROLE,), check_health=False)
                _must_lead(await primary.read_response(disable_decoding=True))
        except BaseException:
            close(primary)
            raise
        return primary
    raise problem or RedisConnectionError("no Sentinel answers")


_ROLE = pack((b"ROLE",))


def _question(address: Address) -> bytes:
    return pack((b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", address.master.encode()))


def _read(reply: Any, address: Address) -> tuple[str, int]:
    if not reply:
        raise RedisConnectionError(f"the Sentinels know no primary of the name {address.master!r}")
    return reply[0].decode(), int(reply[1])


def _must_lead(role: Any) -> None:
    if role[0] != b"master":
        raise RedisConnectionError("the Sentinels name a server that is not the primary (yet)")


def _sentinel(address: Address, options: dict[str, Any]) -> dict[str, Any]:
    """Sentinels have no databases, and passwords of their own: ``sentinel_password`` in the URL."""
    own = {name: value for name, value in options.items() if name not in ("db", "username", "password")}
    return {**own, **address.sentinel_options}
