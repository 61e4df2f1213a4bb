"""What the servers rest on: ports, processes that are never left over, clear words when one is missing."""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import leaks, ports
from .base import DidNotStart
from .mysql import MySQL
from .plugin import Given, given_or_shared, start
from .postgresql import PostgreSQL
from .process import wait_until
from .redis import Redis
from .wire import HOST

pytestmark = pytest.mark.server

HERE = Path(__file__).parent
INSTALL = HERE.parents[1] / "scripts" / "install-servers"
StartServer = Callable[..., Any]


def python(code: str) -> subprocess.Popen[str]:
    """Another test process, as far as this package can tell."""
    path = f"import sys; sys.path.insert(0, {str(HERE.parent)!r})\n"
    return subprocess.Popen([sys.executable, "-c", path + code], stdout=subprocess.PIPE, text=True)


def test_a_port_is_given_to_one_process_at_a_time() -> None:
    port = ports.take()
    attempt = f"from servers import ports; ports.RANGE = range({port}, {port} + 1); print(ports.take())"
    with python(attempt + " # while it is ours") as other:
        assert other.communicate()[0] == ""
    ports.give_back(port)
    with python(attempt + " # afterwards") as other:
        assert other.communicate()[0] == f"{port}\n"


def test_a_port_that_somebody_listens_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "RANGE", range(port, port + 1))
        with pytest.raises(RuntimeError, match="no free port"):
            ports.take()


def test_a_killed_test_run_leaves_no_process_and_no_folder() -> None:
    code = (
        "from servers.postgresql import PostgreSQL\n"
        "server = PostgreSQL().start()\n"
        "server.pause()\n"  # not even a stopped one
        "print(server.port, server.processes.id, server.folder, flush=True)\n"
        "import signal; signal.pause()"
    )
    with python(code) as run:
        assert run.stdout is not None
        _port, group, folder = run.stdout.readline().split()
        assert Path(folder).exists()
        run.kill()
    wait_until(lambda: not Path(folder).exists(), "the folder to be removed")
    wait_until(lambda: not group_runs(int(group)), "the server and its children to end")


def group_runs(group: int) -> bool:
    listing = subprocess.run(["ps", "-e", "-o", "pgid=,stat="], capture_output=True, text=True, check=True)
    rows = (line.split() for line in listing.stdout.splitlines())
    return any(int(pgid) == group and not stat.startswith("Z") for pgid, stat in rows)


def test_a_server_that_does_not_start_shows_its_log() -> None:
    server = Redis("--no-such-option", "1")
    with pytest.raises(DidNotStart, match=r"ended with 1; its log ends:[^$]*no-such-option"):
        server.start()
    server.close()


def test_a_missing_server_fails_and_names_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_TEST_REDIS_SERVER", "/nowhere/redis-server")
    monkeypatch.delenv("LEASEHOLD_TEST_REDIS_URL", raising=False)
    outcomes = (pytest.fail.Exception, pytest.skip.Exception)  # a skip that got out would only skip this test
    with pytest.raises(outcomes, match="scripts/install-servers redis") as outcome:
        start(Redis)
    assert outcome.type is pytest.fail.Exception


def test_a_missing_optional_server_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_TEST_MYSQL_SERVER", "/nowhere/mysqld")
    with pytest.raises(pytest.skip.Exception, match=r"OPTIONAL SERVER MISSING.*scripts/install-servers mysql"):
        start(MySQL)


def test_a_given_server_is_used_but_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://me@db.example:5433/locks"
    monkeypatch.setenv("LEASEHOLD_TEST_POSTGRESQL_URL", url)
    [server] = given_or_shared(PostgreSQL)
    assert isinstance(server, Given)
    assert (server.url, server.port) == (url, 5433)
    for forbidden in (server.pause, server.kill, server.stop, server.restart):
        with pytest.raises(pytest.skip.Exception, match="LEASEHOLD_TEST_POSTGRESQL_URL"):
            forbidden()


def test_a_given_server_is_not_enough_for_a_test_that_kills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEASEHOLD_TEST_REDIS_URL", "redis://db.example:6379/0")
    monkeypatch.setenv("LEASEHOLD_TEST_REDIS_SERVER", "/nowhere/redis-server")
    with pytest.raises(pytest.skip.Exception, match="a server of its own"):
        start(Redis)


def install(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, str(INSTALL), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_script_finds_what_is_there() -> None:
    ran = install("redis", "valkey")
    assert ran.returncode == 0, ran.stderr
    assert "Redis server v=" in ran.stdout
    assert "Valkey server v=" in ran.stdout


def test_the_script_fails_for_a_server_that_can_not_be_had_unless_it_is_optional() -> None:
    ran = install("redis", LEASEHOLD_TEST_REDIS_SERVER="/nowhere/redis-server")
    assert ran.returncode == 1
    assert "REDIS CAN'T BE HAD" in ran.stderr
    ran = install("mysql", LEASEHOLD_TEST_MYSQL_SERVER="/nowhere/mysqld")
    assert ran.returncode == 0
    assert "MYSQL CAN'T BE HAD" in ran.stderr


def test_the_script_knows_its_servers() -> None:
    ran = install("oracle")
    assert ran.returncode == 2
    assert "Not a server: oracle" in ran.stderr


@pytest.mark.parametrize("server_is", ["there", "gone"])
@pytest.mark.parametrize("whose", ["ours", "pymongo.pool"])
def test_an_unclosed_socket_is_an_error_unless_it_is_the_drivers(
    whose: str, server_is: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    leaks.overlook_them()
    caller: dict[str, Any] = {"__name__": whose, "socket": socket}
    exec("def connect(address): return socket.create_connection(address)", caller)
    with socket.create_server((HOST, 0)) as server:
        left = caller["connect"](server.getsockname())
        if server_is == "gone":
            with server.accept()[0] as other_end:
                other_end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets
            with pytest.raises(ConnectionResetError):
                left.recv(1)
        own = id(left)  # which stays its own: what is found is kept
        del left
    assert len([each for each in found if id(each.object) == own]) == (whose == "ours")
