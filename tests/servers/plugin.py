"""The fixtures. The top conftest registers them: `pytest_plugins = ["servers.plugin"]`.

`redis_server` and its like are started once per worker and shared: a test uses them without disturbing them.
A test that pauses, kills or restarts a server starts its own: `start_server(Redis)`, or `EtcdCluster`, ...

A server that is missing fails the test, and the message says how to get it. Only for an optional one (MySQL)
is the test skipped, and the end of the run says so loudly.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import pytest

from . import find, leaks
from .base import Server
from .ensemble import Ensemble
from .etcd import Etcd
from .mongodb import MongoDB, MongoReplicaSet
from .mysql import MariaDB, MySQL
from .postgresql import PostgreSQL
from .redis import Redis, Valkey
from .redis_ensembles import RedisCluster, SentinelSetup
from .zookeeper import ZooKeeper

T = TypeVar("T", bound=Server | Ensemble)
CANT_BE_HAD = "OPTIONAL SERVER MISSING"
PATIENT = 240.0
"""Seconds for a test on a server. The first of them in a worker starts it, while other workers start theirs."""


@pytest.hookimpl(trylast=True)  # after pytest's own, which is asked for the rest
def pytest_configure() -> None:
    leaks.write_down_what_they_make()
    leaks.overlook_them()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("timeout") == 0:  # nobody wants a limit
        return
    for item in items:
        if item.get_closest_marker("server") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PATIENT))


@dataclass(frozen=True)
class Given:
    """A server that somebody else runs, named by an environment variable: ours to use, not to disturb."""

    kind: str
    url: str

    @property
    def port(self) -> int | None:
        return urlsplit(self.url).port

    def _not_ours(self, *_: object, **__: object) -> NoReturn:
        pytest.skip(f"{find.variable(self.kind, 'URL')} names a server that this run can't pause, stop or kill")

    start = stop = kill = restart = pause = resume = _not_ours


def start(make: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Start a server; if there is none on this machine, the test fails (or is skipped: see above)."""
    try:
        server = make(*arguments, **options)
    except find.Missing as missing:
        kind = missing.kind
        if find.KINDS[kind].optional:
            pytest.skip(f"{CANT_BE_HAD}: {missing}")
        if os.environ.get(find.variable(kind, "URL")):
            pytest.skip(f"this test needs a server of its own, not the one that others run: {missing}")
        pytest.fail(str(missing), pytrace=False)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


@pytest.fixture
def start_server() -> Iterator[Callable[..., Any]]:
    """`start_server(Kind, …)` starts a server or ensemble that is this test's alone."""
    started: list[Server | Ensemble] = []

    def start_one(make: Callable[..., T], *arguments: Any, **options: Any) -> T:
        server = start(make, *arguments, **options)
        started.append(server)
        return server

    yield start_one
    for server in started:
        server.close()


def shared(make: Callable[..., T], **options: Any) -> Iterator[T]:
    """One that lives until the end of the run."""
    server = start(make, **options)
    yield server
    server.close()


def given_or_shared(make: type[Server]) -> Iterator[Server | Given]:
    """The one that somebody else runs, if there is such, else one of our own."""
    url = os.environ.get(find.variable(make.kind, "URL"))
    return iter([Given(make.kind, url)]) if url else shared(make)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server | Given]:
    yield from given_or_shared(Redis)


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Server | Given]:
    yield from given_or_shared(Valkey)


@pytest.fixture(scope="session")
def mongodb_server() -> Iterator[Server | Given]:
    yield from given_or_shared(MongoDB)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Server | Given]:
    yield from given_or_shared(PostgreSQL)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[Server | Given]:
    yield from given_or_shared(MariaDB)


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[Server | Given]:
    yield from given_or_shared(MySQL)


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[Server | Given]:
    yield from given_or_shared(Etcd)


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[Server | Given]:
    yield from given_or_shared(ZooKeeper)


@pytest.fixture(scope="session")
def mongodb_replica_set() -> Iterator[MongoReplicaSet]:
    """Of one member: enough for change streams and transactions, and there in half a second."""
    yield from shared(MongoReplicaSet, members=1)


@pytest.fixture(scope="session")
def redis_sentinels() -> Iterator[SentinelSetup]:
    """No test makes one of its servers fail: nobody takes over because the machine is busy."""
    yield from shared(SentinelSetup, down_after=20.0)


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    yield from shared(RedisCluster)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A skip is easily overlooked among the dots."""
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if CANT_BE_HAD in str(r.longrepr)]
    if skipped:
        terminalreporter.section(f"{len(skipped)} TESTS DID NOT RUN: {CANT_BE_HAD}", sep="!", red=True)
        terminalreporter.line(skipped[0].longrepr[2])
