"""No password is ever printed, whatever is wrong with the URL, and none is in the list of processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leasehold.cli import passwords

from .shell import LIMIT, Shell, until

SECRET = "s3cr%40et"
PLAIN = "s3cr@et"
"""The same, decoded."""
HERE = "127.0.0.1"

URLS = [
    f"redis://user:{SECRET}@{HERE}:port/0",
    f"redis://user:{SECRET}@{HERE}:1/db",
    f"redis://user:{SECRET}@{HERE}:1/0?socket_timeout={SECRET}",
    f"redis://user:{SECRET}@{HERE}:1/0",
    f"rediss://user:{SECRET}@{HERE}:1/0?ssl_cert_reqs=wrong",
    "redis://user:s3c/ret@host",
    "redis://user:s3c?ret@host",
    f"redis+sentinel://user:{SECRET}@{HERE}:1",
    f"redis+cluster://user:{SECRET}@{HERE}:1/3",
    f"unix://user:{SECRET}@",
    f"redlock://:{SECRET}@{HERE}:1,{HERE}:2",
    f"redlock://:{SECRET}@{HERE}:port,b,c",
    f"mongodb://user:{SECRET}@{HERE}:port/db",
    f"mongodb://user:{SECRET}@{HERE}:1/db?unknown=1&w={SECRET}",
    f"mongodb://user:{SECRET}@/db",
    f"postgresql://user:{SECRET}@{HERE}:port/db",
    f"postgresql://user:{SECRET}@{HERE}:1/db?unknown={SECRET}",
    f"postgresql://user:{SECRET}@{HERE}:1/db",
    f"postgresql://{HERE}:1/db?user=u&password={SECRET}&unknown=1",
    f"mysql://user:{SECRET}@{HERE}:port/db",
    f"mysql://user:{SECRET}@{HERE}:1",
    f"mysql://user:{SECRET}@{HERE}:1/db?unknown={SECRET}",
    f"mariadb://user:{SECRET}@{HERE}:1/db",
    f"etcd://user:{SECRET}@{HERE}:port",
    f"etcd://user:{SECRET}@{HERE}:1/?unknown={SECRET}",
    f"etcd://user:{SECRET}@{HERE}:1",
    f"zookeeper://user:{SECRET}@{HERE}:port",
    f"zookeeper://user:{SECRET}@{HERE}:1/?unknown={SECRET}",
    f"sqlite:///x.db?key={SECRET}",
    f"sqlite://user:{SECRET}@host",
    f"nonsense://user:{SECRET}@host",
    f"user:{SECRET}@host",
]


def assert_nothing_told(done: subprocess.CompletedProcess[str]) -> None:
    said = done.stdout + done.stderr
    assert said
    for secret in (SECRET, PLAIN, "s3c", "ret@"):
        assert secret not in said


@pytest.mark.parametrize("url", URLS)
def test_wrong_url_is_reported_without_its_password(shell: Shell, url: str) -> None:
    for words in (("ls", "--url", url), ("doctor", f"--url={url}"), ("bench", "--url", url)):
        done = shell.do(*words)
        assert done.returncode in (1, 2, 69, 78), done.stderr
        assert_nothing_told(done)


def test_wrong_url_of_the_environment_is_reported_without_its_password(shell: Shell) -> None:
    done = shell.do("show", "job", env={**shell.environment, "LEASEHOLD_URL": f"redis://user:{SECRET}@{HERE}:port/0"})
    assert done.returncode == 2
    assert_nothing_told(done)


@pytest.mark.parametrize(
    "words",
    [
        ("redis://user:s3cret@host/0", "ls"),
        ("ls", "x", "redis://user:s3cret@host/0"),
        ("ls", "x", "user:s3cret@host"),
        ("ls", "--ulr=redis://user:s3cret@host/0"),
        ("ls", "--redis://user:s3cret@host/0"),
        ("run", "job", "--ttl", "redis://user:s3cret@host/0", "true"),
        ("run", "job", "--on-unavailable", "redis://user:s3cret@host/0", "true"),
        ("run", "job", "redis://user:s3cret@host/0"),
        ("completion", "redis://user:s3cret@host/0"),
        ("help", "redis://user:s3cret@host/0"),
    ],
)
def test_url_in_a_wrong_place_is_not_quoted(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell.do(*words)
    assert done.returncode in (2, 127)
    assert_nothing_told(done)


BUG = """
import sys
import leasehold.cli.look
from leasehold.cli import main
def bug(locks, options):
    raise RuntimeError(f"a driver's own words: {options.url} s3cr@et")
leasehold.cli.look._COMMANDS["ls"] = bug
main()
"""


def test_traceback_of_an_unexpected_error_has_no_password(shell: Shell) -> None:
    words = [sys.executable, "-c", BUG, "ls", "--url", f"redis://user:{SECRET}@{HERE}:1/0"]
    done = subprocess.run(words, env=shell.environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 70
    assert "a driver's own words: redis://user:…@127.0.0.1:1/0 …" in done.stderr
    assert_nothing_told(done)


@pytest.mark.skipif(sys.platform != "linux", reason="the command line of a process can be overwritten only on Linux")
def test_password_is_not_in_the_list_of_processes(shell: Shell) -> None:
    """Not of ``run``, not of the two processes that it has forked."""
    run = shell.start("run", "job", "--url", f"redis://user:{SECRET}@{HERE}:1/0", "--", "true")
    until(lambda: len(shell.processes()) == 3)
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in shell.processes()]
    assert len(lines) == 3
    for line in lines:
        assert b"redis://user:" + b"x" * len(SECRET) + b"@127.0.0.1:1/0\0--\0true\0" in line
    run.terminate()


def test_command_gets_its_own_words_as_they_were_given(shell: Shell) -> None:
    """Only the command line of ``run`` is overwritten."""
    done = shell.do("run", "job", "--", "sh", "-c", "echo $0", f"redis://user:{SECRET}@host")
    assert done.stdout == f"redis://user:{SECRET}@host\n"


def test_short_password_is_hidden_only_in_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["leasehold", "ls", "--url", "redis://user:ab@host"])
    assert passwords.hidden("about redis://user:ab@host") == "about redis://user:…@host"
