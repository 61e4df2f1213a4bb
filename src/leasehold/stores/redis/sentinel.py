"""Which server is the primary, as the Sentinels say. A connection to it is made only when it says so itself.

Whom to ask and whom to believe is written once, without I/O; ``make_in_thread`` and ``make_in_task`` connect.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from ...core import clock
from ...core.protocol import Steps, await_steps, run_steps
from ...errors import StoreNotReady
from .errors import translate
from .pool_tasks import close
from .scripts import pack
from .url import Address

_SLOWEST = 1.0
"""Seconds that one Sentinel may take."""


class Where(NamedTuple):
    """Ask a Sentinel for the primary's address."""

    host: str
    port: int
    limit: float


class Primary(NamedTuple):
    """Connect to what a Sentinel has named. Answered with the connection, if that says that it is a primary."""

    host: str
    port: int
    limit: float


class Sentinels:
    """Those of one URL. The one that was right last is asked first."""

    def __init__(self, address: Address, options: dict[str, Any]) -> None:
        self.options = options
        """For a connection to the primary."""
        theirs = ("db", "username", "password", "credential_provider")
        own = {name: value for name, value in options.items() if name not in theirs}
        self.own_options = {**own, **address.sentinel_options}
        """For one to a Sentinel: it has no databases, and a password of its own."""
        self.question = pack((b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", address.master.encode()))
        self._master = address.master
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
                found = yield Where(host, port, min(_SLOWEST, _share(ends, shares)))
            except (RedisError, OSError) as error:
                problem = problem or error
                continue
            last = number == len(hosts) - 1
            try:
                connection = yield Primary(found[0], found[1], _share(ends, 1 if last else 2))
            except (RedisError, OSError) as error:
                if isinstance(translate(error, ""), StoreNotReady):
                    raise  # it is there, and will not have us
                problem = error
                continue
            self._hosts = [(host, port), *(other for other in hosts if other != (host, port))]
            return connection
        raise problem or RedisConnectionError("no Sentinel answers")

    def read(self, reply: Any) -> tuple[str, int]:
        """Where the primary is, as a Sentinel has answered."""
        if not reply:
            raise RedisConnectionError(f"the Sentinels know no primary named {self._master!r}")
        return reply[0].decode(), int(reply[1])


def _share(ends: float, shares: int) -> float:
    return max(0.001, (ends - clock.now()) / shares)


def make_in_thread(kind: Any, sentinels: Sentinels, limit: float) -> Any:
    """A connection to the primary, connected."""

    def ask(where: Where) -> tuple[str, int]:
        connection = _make(kind, where, sentinels.own_options, where.limit)
        try:
            return sentinels.read(_talk(connection, sentinels.question))
        finally:
            connection.disconnect()

    def connect(primary: Primary) -> Any:
        connection = _make(kind, primary, sentinels.options, primary.limit)
        try:
            _must_lead(_talk(connection, _ROLE))
        except BaseException:
            connection.disconnect()
            raise
        return connection

    return run_steps(
        sentinels.connect(limit), lambda request: ask(request) if isinstance(request, Where) else connect(request)
    )


def _talk(connection: Any, question: bytes) -> Any:
    connection.connect()
    connection.send_packed_command((question,), check_health=False)
    return connection.read_response(disable_decoding=True)


async def make_in_task(kind: Any, sentinels: Sentinels, limit: float) -> Any:
    """A connection to the primary, connected."""

    async def ask(where: Where) -> tuple[str, int]:
        connection = _make(kind, where, sentinels.own_options)
        try:
            return sentinels.read(await _talk_in_task(connection, sentinels.question, where.limit))
        finally:
            close(connection)

    async def connect(primary: Primary) -> Any:
        connection = _make(kind, primary, sentinels.options)
        try:
            _must_lead(await _talk_in_task(connection, _ROLE, primary.limit))
        except BaseException:
            close(connection)
            raise
        return connection

    return await await_steps(
        sentinels.connect(limit), lambda request: ask(request) if isinstance(request, Where) else connect(request)
    )


async def _talk_in_task(connection: Any, question: bytes, limit: float) -> Any:
    async with asyncio.timeout(limit):
        await connection.connect()
        await connection.send_packed_command((question,), check_health=False)
        return await connection.read_response(disable_decoding=True)


def _make(kind: Any, to: Where | Primary, options: dict[str, Any], timeout: float | None = None) -> Any:
    limits = {"socket_connect_timeout": to.limit} | ({} if timeout is None else {"socket_timeout": timeout})
    return kind(host=to.host, port=to.port, **{**options, **limits})


_ROLE = pack((b"ROLE",))


def _must_lead(role: Any) -> None:
    if role[0] != b"master":
        raise RedisConnectionError("the Sentinels name a server that is not the primary (yet)")
