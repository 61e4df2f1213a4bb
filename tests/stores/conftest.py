"""What the tests of the SQL stores share: see ``sql_servers``."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sql_servers import KINDS, Database

import leasehold


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
