"""No password is ever in a message: whatever is wrong with a store's URL, and wherever the password ends up in it."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

import leasehold
from leasehold import admin, aio
from leasehold.cli import command
from leasehold.core import log

SECRET = "hunter2"


def known_schemes() -> list[str]:
    """As a URL with another scheme is told."""
    with pytest.raises(ValueError) as refused:
        leasehold.connect("nosuch://")
    return str(refused.value).partition("use one of ")[2].split(", ")


SCHEMES = [scheme for scheme in known_schemes() if scheme not in ("memory", "sqlite")]
WRONG = [
    # A password with characters that must be percent-encoded.
    "{0}://user:{1}/x@h1:1,h2:2,h3:3/0",
    "{0}://user:x/{1}@h1:1,h2:2,h3:3/0",
    "{0}://user:12/{1}@h1:1,h2:2,h3:3/0",
    "{0}://user:{1}?x@h1:1,h2:2,h3:3/0",
    "{0}://user:x?{1}@h1:1,h2:2,h3:3/0",
    "{0}://user:12?{1}@h1:1,h2:2,h3:3/0",
    "{0}://user:12?{1}=x@h1:1,h2:2,h3:3/0",
    "{0}://user:12?x={1}@h1:1,h2:2,h3:3/0",
    "{0}://user:x@12/{1}@h1:1,h2:2,h3:3/0",
    "{0}://user:x@y?{1}@h1:1,h2:2,h3:3/0",
    "{0}://user:{1}[@h1:1,h2:2,h3:3/0",
    "{0}://user:{1}%zz@h1:1,h2:2,h3:3/0",
    "{0}://user:x,{1}/@h1:1,h2:2,h3:3/0",
    "{0}://{1}/x@h1:1,h2:2,h3:3/0",
    # No host, so that the password is where its port would be.
    "{0}://user:{1}",
    "{0}://user:{1}/0",
    "{0}://h1:1,user:{1}/0",
    # A right one, and something else that is wrong.
    "{0}://user:{1}@h1:port,h2:2,h3:3/0",
    "{0}://user:{1}@h1:1,h2:2,h3:3/0?unknown=1&replicas=x&push=x&table=!&collection=$&tls=x&acl=x&pool_size=x",
    "{0}://user:{1}@h1:1,h2:2,h3:3/0?password={1}%zz&sentinel_password={1}&keyfile_password={1}&unknown=1",
    "{0}://user:{1}@[::1/0",
    "{0}://user:{1}@/..",
    "{0}://user:{1}@#",
]


def said(error: BaseException) -> str:
    return f"{error} {error!r} {''.join(traceback.format_exception(error))}"


def told(function: Any, url: str) -> str:
    """Everything that is shown of a URL: why it is refused, or, when it is right for this store, what is made of it."""
    try:
        made = function(url)
    except ValueError as error:
        return said(error)
    return repr(made)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_password_in_a_bad_place_is_in_no_message_of_connect(scheme: str) -> None:
    for wrong in WRONG:
        url = wrong.format(scheme, SECRET)
        assert SECRET not in told(leasehold.connect, url), wrong
        assert SECRET not in told(aio.connect, url), wrong


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "mariadb"])
def test_password_in_a_bad_place_is_in_no_message_of_schema_sql(scheme: str) -> None:
    for wrong in WRONG:
        assert SECRET not in told(admin.schema_sql, wrong.format(scheme, SECRET)), wrong


@pytest.mark.parametrize("scheme", SCHEMES)
def test_password_that_is_not_percent_encoded_is_explained(scheme: str) -> None:
    for wrong in WRONG:
        if "/{1}@" in wrong or "?{1}@" in wrong:
            with pytest.raises(ValueError, match="percent-encode the user name"):
                leasehold.connect(wrong.format(scheme, SECRET))


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:a%2Fb%3Fc%40d@h/0",
        "redis://h/0?username=me@tenant",
        "redis+unix:///run/a@b.sock",
        "postgresql://h/db?user=me@tenant",
        "postgresql://me%40tenant:x%2Fy@h/db",
        "postgresql:///db?host=@abstract",
        "mongodb://u:x%2Fy@h/db",
        "zookeeper://u:x%2Fy@h/a%40b",
        "etcd://u:x%3Fy@h",
        "sqlite:////var/tmp/a@b.db",
        "memory://a/b@c",
    ],
)
def test_percent_encoded_url_is_accepted(url: str) -> None:
    leasehold.connect(url)


@pytest.mark.parametrize("url", ["sqlite:///x.db?hunter2@h", "memory://x?hunter2@h", "sqlite://u:hunter2@h?mode=ro"])
def test_url_of_a_store_without_passwords_does_not_show_one(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        leasehold.connect(url)
    assert SECRET not in said(caught.value)
    assert "percent" not in str(caught.value)


@pytest.mark.parametrize("wrong", [each for each in WRONG if "?unknown" not in each])
def test_password_in_a_bad_place_is_in_no_message_of_the_command(
    wrong: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "show", None)  # which a command sets for its process
    url = wrong.format("redis", SECRET)
    try:
        leasehold.connect(url)
    except ValueError:
        for words in (["ls", "--url", url], [f"--url={url}", "stats"], ["doctor", "--url", url], [url]):
            assert command(words) == ("", 2)
    assert SECRET not in "".join(capfd.readouterr())


def test_unknown_client_is_not_shown() -> None:
    for package in ("redis", "pymongo", "sqlalchemy", "psycopg_pool", "aiomysql", "grpc", "kazoo"):
        client = type("Shown", (), {"__module__": f"{package}.client", "__repr__": lambda self: SECRET})()
        with pytest.raises(TypeError, match="not Shown") as caught:
            leasehold.connect(client)
        assert SECRET not in said(caught.value)
