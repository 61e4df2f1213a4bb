"""What leasehold needs of kazoo and kazoo does not promise: these fail first when a new version changes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from leasehold.stores.zookeeper.compat import SessionHandler, ask, sasl_options
from leasehold.testing.handles import eventually
from servers import ports
from servers.proxy import Proxy

pytestmark = pytest.mark.server


class Seen:
    """A client with our handler, and what that has told."""

    def __init__(self, port: int, timeout: float = 10.0, **options: Any) -> None:
        self.failed: list[OSError] = []
        self.ended = threading.Event()
        self.handler = SessionHandler(self.failed.append, self.ended.set)
        self.client = KazooClient(f"127.0.0.1:{port}", timeout=timeout, handler=self.handler, **options)

    def close(self) -> None:
        self.client.stop()
        self.client.close()


@pytest.fixture
def seen(zookeeper_server: Any) -> Iterator[Seen]:
    seen = Seen(zookeeper_server.port, timeout=1000.0)
    seen.client.start(20)
    yield seen
    seen.close()


def test_handler_reads_the_timeout_that_the_server_has_agreed_to(seen: Seen) -> None:
    assert seen.handler.agreed == 120.0, "the longest that the server of the tests allows"


def test_handler_reads_the_timeout_of_each_new_connection(seen: Seen) -> None:
    seen.handler.agreed = None
    seen.handler.hang_up()
    eventually(lambda: seen.handler.agreed == 120.0, 20)


def test_handler_notes_when_the_server_is_heard(seen: Seen) -> None:
    before = seen.handler.heard
    time.sleep(0.05)
    seen.client.exists("/")
    assert seen.handler.heard > before


def test_handler_hangs_up_a_connection_that_carries_nothing(zookeeper_server: Any) -> None:
    with Proxy(zookeeper_server.port) as proxy:
        seen = Seen(proxy.port)
        seen.client.start(20)
        proxy.blackhole()
        asked = seen.client.exists_async("/")
        seen.handler.hang_up()
        assert asked.wait(10), "what was under way has failed"
        assert not asked.successful()
        proxy.all_well()
        eventually(lambda: seen.client.connected, 20)
        seen.close()


def test_an_abandoned_session_lives_on(zookeeper_server: Any, seen: Seen) -> None:
    left = Seen(zookeeper_server.port)
    left.client.start(20)
    path = left.client.create("/abandoned-", ephemeral=True, sequence=True)
    left.handler.abandon()
    left.close()
    assert seen.client.exists(path)
    seen.client.delete(path)


def test_handler_is_told_that_a_connection_failed() -> None:
    port = ports.take()
    seen = Seen(port)
    seen.client.start_async()
    eventually(lambda: seen.failed, 20)
    seen.close()
    ports.give_back(port)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_handler_is_told_that_the_connection_thread_has_ended(seen: Seen) -> None:
    assert not seen.ended.is_set()
    seen.client.stop()
    assert seen.ended.wait(20)


def test_a_client_has_one_thread_that_also_calls_back(zookeeper_server: Any) -> None:
    before = threading.active_count()
    seen = Seen(zookeeper_server.port)
    seen.client.start(20)
    assert threading.active_count() == before + 1
    told: list[threading.Thread] = []
    seen.client.exists_async("/").rawlink(lambda result: told.append(threading.current_thread()))
    seen.client.exists("/")
    assert told
    assert told[0] is not threading.current_thread()
    seen.close()


def test_the_options_of_sasl_can_be_read() -> None:
    who = {"mechanism": "DIGEST-MD5", "username": "me", "password": "s3cret"}
    assert sasl_options(KazooClient(sasl_options=who)) == who
    assert sasl_options(KazooClient()) is None


def test_a_request_that_kazoo_lacks_can_be_sent(seen: Seen) -> None:
    class Exists:
        type = 3

        def serialize(self) -> bytes:
            return b"\0\0\0\1/\0"

        @classmethod
        def deserialize(cls, answer: bytes, at: int) -> int:
            return len(answer) - at

    answer = seen.handler.async_result()
    ask(seen.client, Exists(), answer)
    assert answer.get(timeout=20) > 0
