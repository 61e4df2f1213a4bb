"""What the two MongoDB drivers share: where the collection is, how to ask pymongo, what its errors mean."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient, MongoClient, ReadPreference, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DuplicateKeyError,
    InvalidName,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from ..errors import StoreError, StoreNotReady, StoreUnavailable
from ..log import WARNING, log
from .mongo_pipelines import FORMAT

DATABASE = COLLECTION = "leasehold"
CALLS_SIZE = 1 << 20
AWAIT = 25.0
"""How long one request for calls may wait on the server for the next one."""
INDEX_LIMIT = 0.5
"""How long the keeper waits for the TTL index, which nobody needs: renewals must not wait for it."""
INDEX = "leasehold_purge"

indexed: set[tuple[object, ...]] = set()
"""Collections whose TTL index this process has seen to."""


class Link(NamedTuple):
    """Where the leases are: a URL or a user's client, a database, a collection, a namespace in it."""

    url: str | None
    client: Any
    database: str
    collection: str
    namespace: str

    def for_threads(self) -> Link:
        if isinstance(self.client, AsyncMongoClient):
            raise TypeError("an AsyncMongoClient is for leasehold.aio.connect; leasehold.connect takes a MongoClient")
        return self

    def for_tasks(self) -> Link:
        if isinstance(self.client, MongoClient):
            raise TypeError("a MongoClient is for leasehold.connect; leasehold.aio.connect takes an AsyncMongoClient")
        return self

    @property
    def where(self) -> str:
        """For messages."""
        return f"MongoDB collection {self.database}.{self.collection}"


def link_from_url(url: str, namespace: str) -> Link:
    url, collection = _take_option(url, "collection")
    if url.startswith("mongodb+srv://"):
        # Its options come from DNS, and connect() does no I/O: they are checked at the first operation.
        path = url.partition("://")[2].partition("?")[0].partition("/")[2]
        return Link(
            url, None, unquote(path) or DATABASE, _checked(COLLECTION if collection is None else collection), namespace
        )
    try:
        parsed = parse_uri(url)
    except (InvalidURI, ConfigurationError, InvalidName, ValueError, TypeError) as error:
        # The driver's words may quote the URL, and with it the password.
        reason = str(error) if "@" not in url else "user name and password must be percent-encoded, options known"
        raise ValueError(f"bad MongoDB URL: {reason}") from None
    name = collection if collection is not None else parsed["collection"] or COLLECTION
    return Link(url, None, parsed["database"] or DATABASE, _checked(name), namespace)


def link_from_client(client: object, namespace: str) -> Link:
    match client:
        case Collection() | AsyncCollection():
            return Link(None, client.database.client, client.database.name, _checked(client.name), namespace)
        case Database() | AsyncDatabase():
            return Link(None, client.client, client.name, COLLECTION, namespace)
        case MongoClient() | AsyncMongoClient():
            database = client.get_default_database(DATABASE).name
            return Link(None, client, database, COLLECTION, namespace)
    raise TypeError(
        "connect() takes a MongoClient, AsyncMongoClient, Database or Collection of pymongo, "
        f"not {type(client).__name__}"
    )


def _take_option(url: str, option: str) -> tuple[str, str | None]:
    """The URL without an option that is ours and not the driver's, and its value."""
    base, question, query = url.partition("?")
    pairs = [pair for pair in query.split("&") if pair]
    mine = [pair for pair in pairs if pair.partition("=")[0] == option]
    rest = [pair for pair in pairs if pair not in mine]
    if not mine:
        return url, None
    value = dict(parse_qsl(mine[-1], keep_blank_values=True)).get(option, "")
    return base + (question + "&".join(rest) if rest else ""), value


def _checked(collection: str) -> str:
    if not collection or "$" in collection or "\0" in collection or collection.startswith((".", "system.")):
        raise ValueError(f"bad MongoDB URL: {collection!r} is no name for a collection")
    if collection.endswith("."):
        raise ValueError(f"bad MongoDB URL: the name of a collection does not end with a dot: {collection!r}")
    return collection


class Access:
    """The collections of one Locks, through a client that is open: how to ask, without doing it."""

    def __init__(self, link: Link, client: Any) -> None:
        self.link = link
        self.client = client
        # Whatever the client's defaults are: an acknowledged lease is on a majority, and nothing is read elsewhere.
        durable: Any = {
            "codec_options": CodecOptions(),
            "read_preference": ReadPreference.PRIMARY,
            "read_concern": ReadConcern("local"),
            "write_concern": WriteConcern("majority", wtimeout=5000),
        }
        database = client[link.database]
        self.database = database
        self.leases = database.get_collection(link.collection, **durable)
        # Calls are hints: one server is enough.
        self.calls = database.get_collection(
            f"{link.collection}.calls", **{**durable, "write_concern": WriteConcern(1)}
        )

    @property
    def awaits(self) -> float:
        """How long to wait for calls at a time; 0 when this client has no connection to spare for that."""
        pool = self.client.options.pool_options
        if pool.max_pool_size is not None and pool.max_pool_size < 2:
            return 0.0
        limits = [limit / 2 for limit in (pool.socket_timeout, self.client.options.timeout) if limit]
        return float(min([AWAIT, *limits]))

    @property
    def index_key(self) -> tuple[object, ...]:
        return (*sorted(self.client.nodes), self.link.database, self.link.collection)

    def id(self, name: str) -> dict[str, str]:
        return {"ns": self.link.namespace, "name": name}

    def filter(self, name: str, holder: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The document of a name, unless its format is too new for us."""
        found: dict[str, Any] = {"_id": self.id(name), "format": {"$not": {"$gt": FORMAT}}}
        if holder is not None:
            found["holders"] = {"$elemMatch": holder}
        return found

    def updates(self, changes: Any) -> list[UpdateOne]:
        return [UpdateOne(self.filter(each.name, each.holder), each.stages, collation=AS_IT_IS) for each in changes]

    def found(self, names: Sequence[str]) -> dict[str, Any]:
        """Arguments of a find: the documents of these names."""
        return {"filter": {"_id": {"$in": [self.id(name) for name in names]}}, **LOOK}

    def page(self, prefix: str, after: str) -> dict[str, Any]:
        """Arguments of a find: names that start with ``prefix`` and come after ``after``."""
        first = {"$gt": self.id(after)} if after >= prefix else {"$gte": self.id(prefix)}
        names = {
            "_id": {**first, "$lt": {"ns": self.link.namespace, "name": []}},  # arrays sort after all text
            "$expr": {"$eq": [{"$substrCP": ["$_id.name", 0, len(prefix)]}, {"$literal": prefix}]},
            "holders.0": {"$exists": True},
        }
        return {"filter": names, "sort": {"_id": 1}, **LOOK}


AS_IT_IS = {"locale": "simple"}
"""How to compare text, whatever the collection's default is."""
AFTER = {
    "now": "$$NOW",
    **dict.fromkeys(("format", "token", "shape", "limit", "holders", "queue", "lapsed", "abandoned"), 1),
}
"""What a command tells of the document, and the server's time."""
LOOK = {"projection": AFTER, "collation": AS_IT_IS}


def new_session() -> str:
    return os.urandom(8).hex()


def is_race(error: DuplicateKeyError) -> bool:
    """Whether it was just another upsert of the same name: of ``_id`` and no other unique index."""
    pattern = (error.details or {}).get("keyPattern")
    return pattern is None or list(pattern) == ["_id"]


# What the server's codes mean for us. Everything else is unavailable: unknown, and worth another try.
_NOT_ALLOWED = {13, 18, 33, 8000}
_TOO_OLD = {9, 59, 168, 40323, 40324, 16436, 72, 40352}
_UNSATISFIABLE = {79, 100}


def translate(error: Exception, where: str) -> StoreError:
    """The driver's error in our terms."""
    if isinstance(error, DuplicateKeyError):
        index = (error.details or {}).get("keyPattern") or {}
        return StoreNotReady(
            f"{where}: a unique index on {', '.join(index) or 'other fields'} refuses leasehold's records: "
            "drop it, or let leasehold have a collection of its own (?collection=…)"
        )
    if isinstance(error, ConnectionFailure):
        hint = "no primary can be reached" if "Primary" in str(error) or "primary" in str(error) else "no answer"
        return StoreUnavailable(f"{where}: {hint} ({_brief(error)})")
    if isinstance(error, (BulkWriteError, WriteConcernError)):
        return StoreUnavailable(f"{where}: not acknowledged by a majority in time ({_brief(error)})")
    if isinstance(error, OperationFailure):
        code = error.code
        if code == 18 or code == 8000:
            return StoreNotReady(
                f"{where}: the server refuses the credentials ({_brief(error)}): check user, password, authSource"
            )
        if code in _NOT_ALLOWED:
            return StoreNotReady(
                f"{where}: this user may not do what leasehold does ({_brief(error)}): grant find, insert, update and "
                "remove on the collection, or the role readWrite on the database"
            )
        if code in _UNSATISFIABLE:
            return StoreNotReady(f"{where}: write concern majority cannot be had here ({_brief(error)})")
        if code == 121:
            return StoreNotReady(
                f"{where} has a validator that refuses leasehold's records: let leasehold have a collection of its own"
            )
        if code == 166:
            return StoreNotReady(f"{where} is a view: name a collection (?collection=…)")
        if code in _TOO_OLD:
            return StoreNotReady(
                f"{where}: the server cannot do what leasehold needs ({_brief(error)}): use MongoDB 4.4 or newer"
            )
        return StoreUnavailable(f"{where}: {_brief(error)}")
    if isinstance(error, (ConfigurationError, InvalidURI)):
        return StoreNotReady(f"{where}: the driver cannot use this URL or client as it is ({type(error).__name__})")
    return StoreUnavailable(f"{where}: {_brief(error)}")


def _brief(error: Exception) -> str:
    """The gist of the driver's message: without the dump of the topology, and of what was sent."""
    text = str(error).partition(", full error:")[0].partition(", Timeout:")[0].partition(" (configured timeouts")[0]
    return text if len(text) <= 300 else text[:300] + "…"


NOT_CAPPED = 2


def is_refusal(error: PyMongoError) -> bool:
    """Whether asking for calls again would be of no use: it is not allowed."""
    return isinstance(error, OperationFailure) and not error.timeout and error.code in {13, 18, 72, 166, 8000}


def warn_of_index(link: Link, error: PyMongoError) -> None:
    log(
        WARNING,
        "%s: the TTL index on `purge` could not be made (%s); leases work, but records of names that are no longer "
        "used stay: have `leasehold init` make it",
        link.where,
        _brief(error),
        event="no_index",
    )


def reopen_pauses() -> Iterator[float]:
    """How long to wait before the cursor of calls is opened again after it broke, each time it fails."""
    pause = 0.1
    while True:
        yield pause
        pause = min(pause * 2, 5.0)
