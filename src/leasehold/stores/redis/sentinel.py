"""Which server is the primary, as the Sentinels say. A connection to it is used only if the server says so itself.

Which Sentinel to ask and which to believe is written once, without I/O.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import redis
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from ...core import clock
from ...core.protocol import Steps, await_steps, run_steps
from ...errors import StoreNotReady
from . import transport_tasks, transport_threads
from .errors import translate
from .limits import SENTINEL_LIMIT
from .url import RedisAddress


class AskSentinel(NamedTuple):
    """Ask one Sentinel for the primary's address."""

    host: str
    port: int
    limit: float


class ConnectPrimary(NamedTuple):
    """Connect to what a Sentinel has named. Answered with the connection if that says that it is a primary."""

    host: str
    port: int
    limit: float


class Sentinels:
    """The Sentinels of one URL. The one that was right last is asked first."""

    def __init__(self, address: RedisAddress, options: dict[str, Any]) -> None:
        self.master = address.master
        self.options = options
        """For a connection to the primary."""
        theirs = ("db", "username", "password", "credential_provider")
        own = {name: value for name, value in options.items() if name not in theirs}
        self.own_options = {**own, **address.sentinel_options}
        """For a connection to a Sentinel: it has no databases, and a password of its own."""
        self._hosts = list(address.hosts)

    def connect(self, limit: float) -> Steps[Any]:
        """A connection to the primary. If what a Sentinel names is no primary, or is away, the next may know better.

        Each has its share of the limit, so that those that hang do not use it up."""
        ends = clock.now() + limit
        problem: Exception | None = None
        hosts = list(self._hosts)
        for number, (host, port) in enumerate(hosts):
            shares = len(hosts) - number + 1  # and one for the primary
            try:
                named: tuple[str, int] = yield AskSentinel(host, port, min(SENTINEL_LIMIT, _share(ends, shares)))
            except (RedisError, OSError) as error:
                problem = problem or error
                continue
            last = number == len(hosts) - 1
            try:
                connection = yield ConnectPrimary(named[0], named[1], _share(ends, 1 if last else 2))
            except (RedisError, OSError) as error:
                if isinstance(translate(error, ""), StoreNotReady):
                    raise  # the primary is there, and refuses us
                problem = error
                continue
            self._hosts = [(host, port), *(other for other in hosts if other != (host, port))]
            return connection
        raise problem or RedisConnectionError("no Sentinel answers")

    def named(self, answer: Any) -> tuple[str, int]:
        """Not by ``Sentinel.discover_master``: its message shows the password, and hides why the Sentinel refused."""
        if not answer:
            raise RedisConnectionError(f"the Sentinels know no primary named {self.master!r}")
        return transport_threads.as_bytes(answer[0]).decode(), int(answer[1])


def _share(ends: float, shares: int) -> float:
    return max(0.001, (ends - clock.now()) / shares)


def make_in_thread(kind: Any, sentinels: Sentinels, limit: float) -> Any:
    """A connection to the primary, connected."""

    def handle(step: AskSentinel | ConnectPrimary) -> Any:
        limits = {"socket_timeout": step.limit, "socket_connect_timeout": step.limit}
        if isinstance(step, ConnectPrimary):
            connection = kind(host=step.host, port=step.port, **{**sentinels.options, **limits})
            try:
                transport_threads.connect(connection).send_command("ROLE", check_health=False)
                _must_lead(connection.read_response(disable_decoding=True))
            except BaseException:
                connection.disconnect()
                raise
            return connection
        pool = redis.ConnectionPool(kind, host=step.host, port=step.port, **{**sentinels.own_options, **limits})
        try:
            return sentinels.named(redis.Redis(connection_pool=pool).sentinel_get_master_addr_by_name(sentinels.master))
        finally:
            pool.disconnect()

    return run_steps(sentinels.connect(limit), handle)


async def make_in_task(kind: Any, sentinels: Sentinels, limit: float) -> Any:
    """A connection to the primary, connected."""

    async def handle(step: AskSentinel | ConnectPrimary) -> Any:
        limits = {"socket_connect_timeout": step.limit}
        async with asyncio.timeout(step.limit):
            if isinstance(step, ConnectPrimary):
                connection = kind(host=step.host, port=step.port, **{**sentinels.options, **limits})
                try:
                    await (await transport_tasks.connect(connection)).send_command("ROLE", check_health=False)
                    _must_lead(await connection.read_response(disable_decoding=True))
                except BaseException:
                    transport_tasks.hang_up(connection)
                    raise
                return connection
            options = {**sentinels.own_options, **limits}
            pool = redis.asyncio.ConnectionPool(kind, host=step.host, port=step.port, **options)
            client = redis.asyncio.Redis(connection_pool=pool)
            try:
                return sentinels.named(await client.sentinel_get_master_addr_by_name(sentinels.master))
            finally:
                await pool.disconnect()

    return await await_steps(sentinels.connect(limit), handle)


def _must_lead(role: Any) -> None:
    if transport_threads.as_bytes(role[0]) != b"master":
        raise RedisConnectionError("the Sentinels name a server that is not the primary (yet)")
