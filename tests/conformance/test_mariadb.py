"""The MySQL store passes the conformance suite, on MariaDB."""

from typing import Any

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403

from .sql_probes import MySQLProbe

pytestmark = pytest.mark.server


@pytest.fixture
def store(mariadb_server: Any) -> StoreUnderTest:
    probe = MySQLProbe(mariadb_server.port)
    return StoreUnderTest(
        "mariadb", mariadb_server.url, probe, ttl=1.0, slack=0.6, wipe=probe.wipe, age=probe.age, joint=True
    )
