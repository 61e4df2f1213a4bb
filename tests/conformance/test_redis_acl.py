"""The least-privilege user of docs/stores/redis.md is enough for the whole conformance suite."""

import re
from pathlib import Path

import pytest

from leasehold.testing import StoreUnderTest
from leasehold.testing.conformance import *  # noqa: F403
from servers.base import Server
from servers.plugin import Given

from .redis_probe import RedisProbe

PAGE = Path(__file__).parents[2] / "docs" / "stores" / "redis.md"


def acl_line() -> list[str]:
    """The line as it is documented."""
    found = re.search(r"^ACL SETUSER (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1].split()


@pytest.fixture
def store(redis_server: Server | Given) -> StoreUnderTest:
    probe = RedisProbe(redis_server.url)
    probe.client.flushall()
    user, *rules = acl_line()
    probe.client.execute_command("ACL", "SETUSER", user, "reset", *rules)
    password = next(rule[1:] for rule in rules if rule.startswith(">"))
    url = redis_server.url.replace("redis://", f"redis://{user}:{password}@")
    return StoreUnderTest(
        "redis-acl", url, probe, wipe=probe.client.flushall, age=probe.age, leftovers=probe.sessions, joint=True
    )
