from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from servers.plugin import shared
from servers.redis import Redis


@pytest.fixture(scope="session")
def redlock_nodes() -> Iterator[list[str]]:
    """Addresses of three nodes."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(contextmanager(shared)(Redis)) for _ in range(3)]
        yield [f"127.0.0.1:{node.port}" for node in nodes]
