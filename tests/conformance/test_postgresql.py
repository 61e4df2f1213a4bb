"""The PostgreSQL store passes the conformance suite."""

from typing import Any

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403

from .sql_probes import PostgreSQLProbe

pytestmark = pytest.mark.server


@pytest.fixture
def store(postgresql_server: Any) -> StoreUnderTest:
    probe = PostgreSQLProbe(postgresql_server.url)
    return StoreUnderTest("postgresql", postgresql_server.url, probe, wipe=probe.wipe, age=probe.age, joint=True)
