"""What the tests of the stores share. For those of SQL see ``sql_servers``."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sql_servers import KINDS, Database

import leasehold
from leasehold import aio
from leasehold.testing.api import Api, make_api
from leasehold.testing.handles import Locks


@pytest.fixture(params=["threads", "asyncio"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    """For a test that is written once for both sides."""
    api = make_api(request.param)
    yield api
    assert not api.close()


@pytest.fixture
def connect(api: Api) -> Iterator[Callable[..., Locks]]:
    """Makes a ``Locks`` of either side, which is closed in the end."""
    made = []

    def connect(target: Any, **options: Any) -> Locks:
        library: Any = leasehold if api.side == "threads" else aio
        made.append(Locks(api, api.call(library.connect, target, **options)))
        return made[-1]

    yield connect
    for locks in made:
        locks.close()


@pytest.fixture(params=list(KINDS))
def database(request: pytest.FixtureRequest) -> Database:
    """A server shared by the tests of this run."""
    return Database(request.getfixturevalue(f"{request.param}_server"))


@pytest.fixture(params=["postgresql", "mariadb"])
def own(request: pytest.FixtureRequest, start_server: Callable[..., Any]) -> Database:
    """A server of this test's own, to be killed and starved."""
    return Database(start_server(KINDS[request.param]))


@pytest.fixture(params=list(KINDS))
def own_of_all(request: pytest.FixtureRequest, start_server: Callable[..., Any]) -> Database:
    """The same, of each kind: one whose connections and statements are counted."""
    return Database(start_server(KINDS[request.param]))


@pytest.fixture
def namespace() -> str:
    return f"n{os.urandom(5).hex()}"


@pytest.fixture
def locks(database: Database, namespace: str) -> Iterator[leasehold.Locks]:
    with leasehold.connect(database.url, namespace=namespace, ttl=30) as locks:
        yield locks
