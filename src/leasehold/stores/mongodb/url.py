"""Where the leases are: read from a URL, or from a client that the user has."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import ConfigurationError, InvalidName, InvalidURI
from pymongo.uri_parser import parse_uri

DATABASE = COLLECTION = "leasehold"
AUTO, STREAM, CALLS, NONE = PUSH = ("auto", "stream", "calls", "none")
"""The values of ``?push=``: how waiters are notified. See :mod:`.listening`."""


class Target(NamedTuple):
    """A URL or a user's client, a database, a collection, and a namespace in it."""

    url: str | None
    client: Any
    database: str
    collection: str
    namespace: str
    push: str = AUTO

    def for_threads(self) -> Target:
        if isinstance(self.client, AsyncMongoClient):
            raise TypeError("an AsyncMongoClient is for leasehold.aio.connect; leasehold.connect takes a MongoClient")
        return self

    def for_tasks(self) -> Target:
        if isinstance(self.client, MongoClient):
            raise TypeError("a MongoClient is for leasehold.connect; leasehold.aio.connect takes an AsyncMongoClient")
        return self

    @property
    def where(self) -> str:
        """For messages."""
        return f"MongoDB collection {self.database}.{self.collection}"


def target_from_url(url: str, namespace: str) -> Target:
    url, collection = _take_option(url, "collection")
    url, push = _take_option(url, "push")
    if push is None:
        push = AUTO
    elif push not in PUSH:
        raise ValueError(f"bad MongoDB URL: push must be one of {', '.join(PUSH)}, not {push!r}")
    if url.startswith("mongodb+srv://"):
        # Options may come from DNS too, and connect() does no I/O: these are checked at the first operation.
        _check_names(url)
        path = url.partition("://")[2].partition("?")[0].partition("/")[2]
        name = COLLECTION if collection is None else collection
        return Target(url, None, unquote(path) or DATABASE, _checked(name), namespace, push)
    try:
        parsed = parse_uri(url)
    except OSError as error:
        raise ValueError(f"bad MongoDB URL: cannot read {error.filename}: {error.strerror}") from None
    except (InvalidURI, ConfigurationError, InvalidName, ValueError, TypeError) as error:
        _check_names(url)
        # The driver's words may quote the URL, and with it the password.
        reason = str(error) if "@" not in url else "percent-encode the user name and password, and check the options"
        raise ValueError(f"bad MongoDB URL: {reason}") from None
    name = collection if collection is not None else parsed["collection"] or COLLECTION
    return Target(url, None, parsed["database"] or DATABASE, _checked(name), namespace, push)


def target_from_client(client: object, namespace: str) -> Target:
    match client:
        case Collection() | AsyncCollection():
            return Target(None, client.database.client, client.database.name, _checked(client.name), namespace)
        case Database() | AsyncDatabase():
            return Target(None, client.client, client.name, COLLECTION, namespace)
        case MongoClient() | AsyncMongoClient():
            database = client.get_default_database(DATABASE).name
            return Target(None, client, database, COLLECTION, namespace)
    raise TypeError(
        "connect() takes a MongoClient, AsyncMongoClient, Database or Collection of pymongo, "
        f"not {type(client).__name__}"
    )


def _take_option(url: str, option: str) -> tuple[str, str | None]:
    """The URL without an option that is ours and not the driver's, and the option's value."""
    base, question, query = url.partition("?")
    pairs = [pair for pair in query.split("&") if pair]
    mine = [pair for pair in pairs if pair.partition("=")[0] == option]
    if not mine:
        return url, None
    rest = [pair for pair in pairs if pair not in mine]
    value = dict(parse_qsl(mine[-1], keep_blank_values=True)).get(option, "")
    return base + (question + "&".join(rest) if rest else ""), value


def _check_names(url: str) -> None:
    """Raise ValueError if the URL has an option that neither leasehold nor pymongo knows."""
    for name, value in parse_qsl(url.partition("?")[2], keep_blank_values=True):
        try:
            parse_uri(f"mongodb://h/?{quote(name)}={quote(value)}")
        except ConfigurationError as error:
            if str(error).startswith("Unknown option"):
                known = "known are collection, push and the options of pymongo"
                raise ValueError(f"bad MongoDB URL: unknown option {name!r}; {known}") from None
        except (OSError, ValueError, TypeError):
            pass  # the name is known, and the value is checked with the whole URL


def _checked(collection: str) -> str:
    if not collection or "$" in collection or "\0" in collection or collection.startswith((".", "system.")):
        raise ValueError(f"bad MongoDB URL: {collection!r} is not a valid collection name")
    if collection.endswith("."):
        raise ValueError(f"bad MongoDB URL: a collection name must not end with a dot: {collection!r}")
    return collection
